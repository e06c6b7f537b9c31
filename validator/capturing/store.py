"""One rank's capture file, as it is written.

What is added stays in memory until `commit`, which appends it and flushes. A killed run can lose what
came after its last commit, hardly ever what came before, because between two commits nothing that the
file's directory of chunks refers to is moved or overwritten:

- HDF5's metadata cache evicts nothing, so metadata reaches the file in the flush alone;
- a compressed chunk is written once: each large value starts at a chunk of its own;
- room is asked of the disk before HDF5 is touched, so a full disk leaves the last commit as it was.
"""

import contextlib
import errno
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import torch
from h5py import h5d, h5p, h5s, h5t, h5z

from validator.errors import CaptureError

from .copies import Layout
from .digest import checksum, statistics
from .formats_hdf5 import dtype_name, element_bytes, hdf5_type
from .records import Statistics
from .schema import (
    FORMAT,
    FORMAT_VERSION,
    INDEX,
    INDEX_DTYPE,
    MANIFEST,
    NO_SOURCE,
    NO_STATISTICS,
    ROW_HASHES,
    TABLES,
    source_name,
)

__all__ = ["CaptureFile"]

_LARGE_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
_INDEX_CHUNK = 32
_TABLE_CHUNK = 128
_SLACK_BYTES = 1 << 20
_LINK_BYTES = 512
_REMEMBERED = 1 << 17
_FAILURE_BYTES = 512
_COMPRESSION = hdf5plugin.Bitshuffle(cname="zstd", clevel=1)


class CaptureFile:
    """A capture file of one rank that is being written.

    Args:
        path: the file; what it held is replaced.
        rank: this rank.
        world_size: number of ranks of the run.
    """

    def __init__(self, path: Path, *, rank: int, world_size: int) -> None:
        self.path = path
        self.pending_bytes = 0
        self.committed_values = 0
        self._added_values = 0
        self._file = h5py.File(path, "w", libver="earliest", locking=False)
        self._descriptor = os.open(path, os.O_RDWR)
        _keep_metadata(self._file)
        self._tables = {name: _Table(self._file, name, dtype) for name, dtype in TABLES.items()}
        self._edges: dict[str, _Edge] = {}
        self._sources: list[_Source] = []
        self._layouts: dict[str, int] = {}
        self._known: dict[tuple[str, str], tuple[_Source, int, Statistics | None]] = {}
        attributes = self._file.attrs
        attributes["format"] = FORMAT
        attributes["format_version"] = FORMAT_VERSION
        attributes["rank"] = rank
        attributes["world_size"] = world_size
        # Both are there from the start at their full size: changing them later takes no room on a full disk.
        attributes["complete"] = False
        attributes.create("failure", b"", dtype=f"S{_FAILURE_BYTES}")
        self._file.flush()

    def add_row(self, table: str, row: tuple[Any, ...]) -> None:
        """Add a row to a table of `schema.TABLES`."""
        self._tables[table].pending.append(row)
        self.pending_bytes += 64 + sum(len(x) for x in row if isinstance(x, str))

    def add_value(self, edge: str, row: int, tensor: torch.Tensor, layout: Layout) -> None:
        """Add a tensor to an edge, or where its bits are already stored a link to them.

        Args:
            edge: path of the edge's group.
            row: number of the call, collective or parameter that it belongs to.
            tensor: contiguous, on the CPU; kept until the next commit.
            layout: its place in a larger tensor.
        """
        dtype = dtype_name(tensor.dtype)
        data = element_bytes(tensor)
        digest = checksum(data)
        target = self._edge(edge, dtype, layout)
        known = self._known.get((dtype, digest))
        if known is None:
            source = target.sources.get((dtype, data.size >= _LARGE_BYTES))
            if source is None:
                source = self._new_source(target, dtype, data.size)
            known = (source, source.append(data), statistics(tensor))
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[dtype, digest] = known
            self.pending_bytes += data.size
        stored, offset, numbers = known
        target.add(row, stored, self._layout(layout), offset, digest, numbers)
        self._added_values += 1
        self.pending_bytes += INDEX_DTYPE.itemsize

    def add_hashes(
        self, edge: str, row: int, dtype: str, layout: Layout, digest: str, hashes: tuple[str, ...]
    ) -> None:
        """Add a value that is known by the hash of each of its rows, not by its elements."""
        target = self._edge(edge, dtype, layout)
        target.row_hashes = hashes
        target.add(row, None, self._layout(layout), 0, digest, None)
        self._added_values += 1
        self.pending_bytes += 32 * len(hashes)

    def commit(self) -> None:
        """Append all that was added, and flush.

        Raises:
            CaptureError: the disk is full, or refuses to be written.
        """
        edges = [e for e in self._edges.values() if e.pending or not e.created]
        sources = [s for s in self._sources if s.pending]
        try:
            parts: list[_Edge | _Source | _Table] = [*edges, *sources, *self._tables.values()]
            self._reserve(sum(part.room_bytes() for part in parts))
            for edge in edges:
                edge.write(self._file)
            for source in sources:
                source.write(self._file)
            for table in self._tables.values():
                table.write()
            self._flush()
        except OSError as error:
            raise CaptureError(self._failed(error)) from error
        self.pending_bytes = 0
        self.committed_values = self._added_values

    def finish(self, *, manifest: str | None) -> None:
        """Commit, mark the file as complete, put its bytes on the disk and close it.

        Args:
            manifest: stored in the file, where it is the whole capture.
        """
        self.commit()
        try:
            self._reserve(_LINK_BYTES * len(self._edges) + 2 * len(manifest or ""))
            for edge in self._edges.values():
                edge.link(self._file)
            if manifest is not None:
                self._file.create_dataset(
                    MANIFEST, data=manifest, dtype=h5py.string_dtype(), track_times=False
                )
            self._flush()
            self._file.attrs.modify("complete", True)
            self._flush()
            os.fsync(self._descriptor)
        except OSError as error:
            raise CaptureError(self._failed(error)) from error
        self._close()

    def abandon(self, failure: str) -> None:
        """Close the file as incomplete, with the reason. What was committed stays readable."""
        with contextlib.suppress(OSError, RuntimeError):
            reason = failure.encode(errors="replace")[:_FAILURE_BYTES]
            self._file.attrs.modify("failure", np.array(reason, dtype=f"S{_FAILURE_BYTES}"))
            self._file.flush()
        self._close()

    def _close(self) -> None:
        # Closing flushes once more, which can fail only after a commit has, and that was raised.
        with contextlib.suppress(OSError, RuntimeError):
            self._file.close()
        os.close(self._descriptor)

    def _edge(self, path: str, dtype: str, layout: Layout) -> "_Edge":
        edge = self._edges.get(path)
        if edge is None:
            edge = self._edges[path] = _Edge(path, dtype, layout)
        return edge

    def _new_source(self, edge: "_Edge", dtype: str, size_bytes: int) -> "_Source":
        large = size_bytes >= _LARGE_BYTES
        path = f"{edge.path}/{source_name(dtype, large=large)}"
        source = _Source(path, len(self._sources), dtype, size_bytes, large=large)
        self._sources.append(source)
        edge.sources[dtype, large] = source
        self.add_row("sources", (path, dtype))
        return source

    def _layout(self, layout: Layout) -> int:
        text = layout.to_json()
        if text not in self._layouts:
            self._layouts[text] = len(self._layouts)
            self.add_row("layouts", (text,))
        return self._layouts[text]

    def _reserve(self, need_bytes: int) -> None:
        if not hasattr(os, "posix_fallocate"):
            return
        size = os.fstat(self._descriptor).st_size
        try:
            os.posix_fallocate(self._descriptor, size, need_bytes + _SLACK_BYTES)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise

    def _flush(self) -> None:
        self._file.flush()
        os.ftruncate(self._descriptor, self._file.id.get_filesize())

    def _failed(self, error: OSError) -> str:
        no_room = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        what = "no room left on the disk" if no_room else str(error)
        return (
            f"{self.path}: {what}; the capture stopped after {self._added_values} values, of which "
            f"{self.committed_values} are in the file: open_capture(..., allow_incomplete=True) reads them. "
            "Make room, or capture less: include= takes globs over modules, calls= the calls to keep."
        )


class _Table:
    def __init__(self, file: h5py.File, name: str, dtype: np.dtype) -> None:
        self.pending: list[tuple[Any, ...]] = []
        self._dtype = dtype
        self._dataset = file.create_dataset(
            name, shape=(0,), maxshape=(None,), chunks=(_TABLE_CHUNK,), dtype=dtype, track_times=False
        )

    def room_bytes(self) -> int:
        texts = sum(len(x) + 32 for row in self.pending for x in row if isinstance(x, str))
        return 2 * texts + (len(self.pending) + _TABLE_CHUNK) * self._dtype.itemsize + 4096

    def write(self) -> None:
        if not self.pending:
            return
        start = self._dataset.shape[0]
        self._dataset.resize((start + len(self.pending),))
        self._dataset[start:] = np.array(self.pending, dtype=self._dtype)
        self.pending.clear()


class _Edge:
    """The index of one edge, and what its viewers are told once."""

    def __init__(self, path: str, dtype: str, layout: Layout) -> None:
        self.path = path
        self.sources: dict[tuple[str, bool], _Source] = {}
        self.pending: list[tuple[Any, ...]] = []
        self.row_hashes: tuple[str, ...] = ()
        self.created = False
        described = {k: v for k, v in asdict(layout).items() if v is not None}
        if layout.mesh is not None:
            del described["mesh"]["ranks"]
        self._attributes = {"dtype": dtype, **{k: json.dumps(v) for k, v in described.items()}}
        self._dataset: h5d.DatasetID | None = None
        self._rows = 0
        self._mirrors = True
        self._mirrored: _Source | None = None

    def add(
        self,
        row: int,
        source: "_Source | None",
        layout: int,
        offset: int,
        digest: str,
        numbers: Statistics | None,
    ) -> None:
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
        new = 0 if self.created else 16 << 10
        rows = (len(self.pending) + _INDEX_CHUNK) * INDEX_DTYPE.itemsize
        return new + rows + 4096 + 40 * len(self.row_hashes)

    def write(self, file: h5py.File) -> None:
        if self._dataset is None:
            group = file.require_group(self.path)
            for name, value in self._attributes.items():
                group.attrs[name] = value
            self._dataset = _create(group, INDEX, h5t.py_create(INDEX_DTYPE), _INDEX_CHUNK)
            if self.row_hashes:
                group.create_dataset(ROW_HASHES, data=np.array(self.row_hashes, "S32"), track_times=False)
            self.created = True
        rows = np.array(self.pending, dtype=INDEX_DTYPE)
        _append(self._dataset, self._dataset.shape[0], rows, len(rows), h5t.py_create(INDEX_DTYPE))
        self.pending.clear()

    def link(self, file: h5py.File) -> None:
        """Show the elements here too, where all of them are those of one other edge."""
        source = self._mirrored
        if source is None or self.sources or not self._mirrors or self._rows != len(source.offsets):
            return
        file[f"{self.path}/{source.path.rpartition('/')[2]}"] = h5py.SoftLink(f"/{source.path}")


class _Source:
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
        elements: int = self._length - self.pending[0][0]
        chunks: int = elements // self._chunk + 2
        return chunks * (self._chunk * self._itemsize + 64) + 8192

    def write(self, file: h5py.File) -> None:
        if self._dataset is None:
            group, name = self.path.rsplit("/", 1)
            self._dataset = _create(file[group], name, self._type, self._chunk, compress=self._large)
            h5py.Dataset(self._dataset).attrs["dtype"] = self._dtype
        pieces = self.pending
        if not self._large:
            pieces = [(pieces[0][0], np.concatenate([data for _, data in pieces]))]
        for offset, data in pieces:
            _append(self._dataset, offset, data, data.size // self._itemsize, self._type)
        self.pending.clear()


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
    access = h5p.create(h5p.DATASET_ACCESS)
    # A chunk that is compressed goes straight to the file, a small one waits for its neighbours.
    access.set_chunk_cache(13, 0 if compress else chunk * htype.get_size(), 1.0)
    space = h5s.create_simple((0,), (h5s.UNLIMITED,))
    return h5d.create(group.id, name.encode(), htype, space, creation, dapl=access)


def _append(dataset: h5d.DatasetID, offset: int, data: np.ndarray, count: int, htype: h5t.TypeID) -> None:
    if count == 0:
        return
    dataset.set_extent((offset + count,))
    space = dataset.get_space()
    space.select_hyperslab((offset,), (count,))
    dataset.write(h5s.create_simple((count,)), space, data, mtype=htype)


def _keep_metadata(file: h5py.File) -> None:
    config = file.id.get_mdc_config()
    config.evictions_enabled = False
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0
    file.id.set_mdc_config(config)
