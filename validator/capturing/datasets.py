"""The datasets of a capture file that is being written: tables, edges and their elements.

Each keeps what is added until `write`, and says beforehand how much room on the disk that can take. Between
two writes it may be released, so that the file can be closed; the next write opens it again.
"""

import json
from dataclasses import asdict
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from h5py import h5d, h5p, h5s, h5t, h5z

from .copies import Layout
from .formats_hdf5 import hdf5_type
from .records import Statistics
from .schema import INDEX, INDEX_DTYPE, NO_SOURCE, NO_STATISTICS, ROW_HASHES

__all__ = ["Edge", "Source", "Table"]

_CHUNK_BYTES = 1 << 20
_INDEX_CHUNK = 32
_TABLE_CHUNK = 128
_COMPRESSION = hdf5plugin.Bitshuffle(cname="zstd", clevel=1)


class Table:
    """A table of `schema.TABLES`."""

    def __init__(self, file: h5py.File, name: str, dtype: np.dtype) -> None:
        self.pending: list[tuple[Any, ...]] = []
        self._name, self._dtype = name, dtype
        self._dataset: h5py.Dataset | None = file.create_dataset(
            name, shape=(0,), maxshape=(None,), chunks=(_TABLE_CHUNK,), dtype=dtype, track_times=False
        )

    def room_bytes(self) -> int:
        """Return at most how much the file grows when this is written."""
        texts = sum(len(x) + 32 for row in self.pending for x in row if isinstance(x, str))
        return 2 * texts + (len(self.pending) + _TABLE_CHUNK) * self._dtype.itemsize + 4096

    def write(self, file: h5py.File) -> None:
        """Append what was added."""
        if not self.pending:
            return
        if self._dataset is None:
            self._dataset = file[self._name]
        start = self._dataset.shape[0]
        self._dataset.resize((start + len(self.pending),))
        self._dataset[start:] = np.array(self.pending, dtype=self._dtype)
        self.pending.clear()

    def release(self) -> None:
        """Let go of the dataset until the next write."""
        self._dataset = None


class Edge:
    """The index of one edge, and what its viewers are told once."""

    def __init__(self, path: str, dtype: str, layout: Layout) -> None:
        self.path = path
        self.sources: dict[tuple[str, bool], Source] = {}
        self.pending: list[tuple[Any, ...]] = []
        self.row_hashes: tuple[str, ...] = ()
        described = {k: v for k, v in asdict(layout).items() if v is not None}
        if layout.mesh is not None:
            del described["mesh"]["ranks"]
        self._attributes = {"dtype": dtype, **{k: json.dumps(v) for k, v in described.items()}}
        self._dataset: h5d.DatasetID | None = None
        self._is_made = False
        self._rows = 0
        self._mirrors = True
        self._mirrored: Source | None = None

    def add(
        self,
        row: int,
        source: "Source | None",
        layout: int,
        offset: int,
        digest: str,
        numbers: Statistics | None,
    ) -> None:
        """Add a value: its row in a table, and where its elements are, or None where only hashes are kept."""
        described = (
            (numbers.min, numbers.max, numbers.mean, numbers.rms, numbers.nan, numbers.inf)
            if numbers
            else (np.nan, np.nan, np.nan, np.nan, NO_STATISTICS, 0)
        )
        number = NO_SOURCE if source is None else source.number
        self.pending.append((row, number, layout, offset, digest.encode(), *described))
        if self._rows == 0:
            self._mirrored = source
        mirrored = self._mirrored
        self._mirrors &= mirrored is source and source is not None and source.starts(self._rows, offset)
        self._rows += 1

    def room_bytes(self) -> int:
        """Return at most how much the file grows when this is written."""
        new = 0 if self._is_made else 16 << 10
        rows = (len(self.pending) + _INDEX_CHUNK) * INDEX_DTYPE.itemsize
        return new + rows + 4096 + 40 * len(self.row_hashes)

    def write(self, file: h5py.File) -> None:
        """Append what was added."""
        if not self._is_made:
            group = file.require_group(self.path)
            for name, value in self._attributes.items():
                group.attrs[name] = value
            self._dataset = _create(group, INDEX, h5t.py_create(INDEX_DTYPE), _INDEX_CHUNK)
            if self.row_hashes:
                group.create_dataset(ROW_HASHES, data=np.array(self.row_hashes, "S32"), track_times=False)
            self._is_made = True
        if self._dataset is None:
            self._dataset = h5d.open(file.id, f"{self.path}/{INDEX}".encode())
        rows = np.array(self.pending, dtype=INDEX_DTYPE)
        _append(self._dataset, self._dataset.shape[0], rows, len(rows), h5t.py_create(INDEX_DTYPE))
        self.pending.clear()

    def release(self) -> None:
        """Let go of the dataset until the next write."""
        self._dataset = None

    def link(self, file: h5py.File) -> None:
        """Show the elements here too, where all of them are those of one other edge."""
        source = self._mirrored
        if source is None or self.sources or not self._mirrors or self._rows != len(source.offsets):
            return
        file[f"{self.path}/{source.path.rpartition('/')[2]}"] = h5py.SoftLink(f"/{source.path}")


class Source:
    """The elements of one edge and one dtype, end to end; large values each start at a chunk."""

    def __init__(self, path: str, number: int, dtype: str, size_bytes: int, *, large: bool) -> None:
        self.path, self.number = path, number
        self.pending: list[tuple[int, np.ndarray]] = []
        self.offsets: list[int] = []
        self._dtype = dtype
        self._type = hdf5_type(dtype)
        self._itemsize: int = self._type.get_size()
        self._large = large
        self._length = 0
        self._dataset: h5d.DatasetID | None = None
        self._is_made = False
        elements = max(1, size_bytes // self._itemsize)
        if large:
            # Chunks of equal size that the first value fills.
            self._chunk: int = -(-elements // -(-size_bytes // _CHUNK_BYTES))
        else:
            self._chunk = max(1024, 1 << (max(1, size_bytes) - 1).bit_length()) // self._itemsize

    def append(self, data: np.ndarray) -> int:
        """Keep a value's bytes for the next commit, and return where it starts."""
        offset = -(-self._length // self._chunk) * self._chunk if self._large else self._length
        self._length = offset + data.size // self._itemsize
        self.pending.append((offset, data))
        self.offsets.append(offset)
        return offset

    def starts(self, position: int, offset: int) -> bool:
        """Say whether the value at `position` starts at `offset`."""
        return position < len(self.offsets) and self.offsets[position] == offset

    def room_bytes(self) -> int:
        """Return at most how much the file grows when this is written."""
        elements: int = self._length - self.pending[0][0]
        chunks: int = elements // self._chunk + 2
        return chunks * (self._chunk * self._itemsize + 64) + 8192

    def write(self, file: h5py.File) -> None:
        """Append what was added."""
        if not self._is_made:
            group, name = self.path.rsplit("/", 1)
            self._dataset = _create(file[group], name, self._type, self._chunk, compress=self._large)
            h5py.Dataset(self._dataset).attrs["dtype"] = self._dtype
            self._is_made = True
        if self._dataset is None:
            access = _access(self._chunk * self._itemsize, compress=self._large)
            self._dataset = h5d.open(file.id, self.path.encode(), access)
        pieces = self.pending
        if not self._large:
            pieces = [(pieces[0][0], np.concatenate([data for _, data in pieces]))]
        for offset, data in pieces:
            _append(self._dataset, offset, data, data.size // self._itemsize, self._type)
        self.pending.clear()

    def release(self) -> None:
        """Let go of the dataset until the next write."""
        self._dataset = None


def _create(
    group: h5py.Group, name: str, htype: h5t.TypeID, chunk: int, *, compress: bool = False
) -> h5d.DatasetID:
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk((chunk,))
    creation.set_obj_track_times(False)
    if compress:
        creation.set_filter(
            _COMPRESSION["compression"], h5z.FLAG_MANDATORY, tuple(_COMPRESSION["compression_opts"])
        )
    access = _access(chunk * htype.get_size(), compress=compress)
    space = h5s.create_simple((0,), (h5s.UNLIMITED,))
    return h5d.create(group.id, name.encode(), htype, space, creation, dapl=access)


def _access(chunk_bytes: int, *, compress: bool) -> h5p.PropDAID:
    access = h5p.create(h5p.DATASET_ACCESS)
    # A chunk that is compressed goes straight to the file, a small one waits for its neighbours.
    access.set_chunk_cache(13, 0 if compress else chunk_bytes, 1.0)
    return access


def _append(dataset: h5d.DatasetID, offset: int, data: np.ndarray, count: int, htype: h5t.TypeID) -> None:
    if count == 0:
        return
    dataset.set_extent((offset + count,))
    space = dataset.get_space()
    space.select_hyperslab((offset,), (count,))
    dataset.write(h5s.create_simple((count,)), space, data, mtype=htype)
