"""Reading a capture file that nobody vouches for.

Nothing is followed out of the file (soft and external links, external storage and virtual datasets are
refused), nothing is allocated for what a file claims to hold but does not, no object is unpickled, and
whatever is broken ends in a `CaptureError`.
"""

import contextlib
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np
import torch
from h5py import h5d, h5g, h5l, h5o, h5s, h5t

from validator.errors import CaptureError

from .chunks import check_chunks, check_filters
from .digest import Checksum, checksum
from .formats_hdf5 import hdf5_type, torch_tensor
from .manifest import check_format
from .schema import FORMAT

__all__ = ["CaptureSource", "StoredValue", "damage_explained", "opened"]

_MAX_CHUNK_BYTES = 64 << 20
_KEPT_OPEN = 256
"""So many datasets, and so many groups, stay open: HDF5 holds some 35 KB of memory for each."""

_METADATA_BYTES = 512 << 10
"""So many bytes of metadata are cached: in memory they are ten times as large."""

_Opened = TypeVar("_Opened")
_BROKEN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class CaptureSource:
    """An open capture file.

    Args:
        path: the file.

    Raises:
        CaptureError: it is no HDF5 file, no capture, of another version, or damaged. So do the methods.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise CaptureError(
                f"{path}: no such file. Copy the whole folder of the capture, with every rank's file."
            )
        with damage_explained(path):
            if not h5py.is_hdf5(path):
                raise CaptureError(
                    f"{path}: not an HDF5 file, so no capture. Give a folder or .h5 file that "
                    "`validator capture` wrote."
                )
            self._file = _open(path)
            attributes = self._file.attrs
            name, version = attributes.get("format"), attributes.get("format_version")
            check_format(name, version if name != FORMAT or version is None else int(version), str(path))
            self.rank = int(attributes["rank"])
            self.world_size = int(attributes["world_size"])
            # Captures may be older than this name.
            self.capture_id = str(attributes.get("capture_id", ""))
            self.complete = bool(attributes["complete"])
            self.failure = bytes(attributes["failure"]).decode(errors="replace")
        self._values: OrderedDict[str, tuple[h5py.Dataset, bool]] = OrderedDict()
        # Kept: h5py's proxy of a group's links does not keep the group open.
        self._root = h5g.open(self._file.id, b"/")
        self._groups: OrderedDict[str, h5g.GroupID] = OrderedDict()

    def has(self, path: str) -> bool:
        """Say whether there is something at `path`."""
        parent, _, name = path.rpartition("/")
        if parent and parent not in self._groups and not self.has(parent):
            return False
        with damage_explained(self.path):
            return bool(self._group(parent).links.exists(name.encode()))

    def attribute(self, path: str, name: str) -> str:
        """Return an attribute of the group at `path`, as text."""
        with damage_explained(self.path):
            return str(h5py.Group(self._group(path)).attrs[name])

    def text(self, path: str) -> str:
        """Return the text of a scalar dataset."""
        with damage_explained(self.path):
            value: bytes = h5py.Dataset(self._dataset(path))[()]
            return value.decode()

    def table(self, path: str, dtype: np.dtype) -> np.ndarray:
        """Return the rows of a one-dimensional dataset that is not compressed, of exactly `dtype`."""
        with damage_explained(self.path):
            dataset, (in_file, in_memory) = self._dataset(path), _table_types(dtype)
            if dataset.rank != 1 or not dataset.get_type().equal(in_file):
                raise ValueError(f"{path!r} has type {str(h5py.Dataset(dataset).dtype)[:200]}, not {dtype}")
            size_bytes = dataset.shape[0] * in_file.get_size()
            if size_bytes > dataset.get_storage_size():
                raise ValueError(f"{path!r} claims {size_bytes} bytes that the file does not hold")
            rows = np.zeros(dataset.shape, dtype)
            if rows.size:
                dataset.read(h5s.ALL, h5s.ALL, rows, mtype=in_memory)
            return rows

    def block_elements(self, path: str, dtype: str) -> int:
        """Return how many elements are best read at once: a chunk, since a part of one costs as much."""
        with damage_explained(self.path):
            dataset, _ = self._opened_values(path, dtype)
            return max(1, (dataset.chunks or (0,))[0])

    def length(self, path: str, dtype: str) -> int:
        """Return how many elements a dataset of the torch dtype `dtype` has."""
        with damage_explained(self.path):
            return int(self._opened_values(path, dtype)[0].shape[0])

    def elements(self, path: str, dtype: str, offset: int, count: int) -> np.ndarray:
        """Return the bytes of `count` elements of the torch dtype `dtype`, from `offset`, as uint8."""
        with damage_explained(self.path):
            dataset, compressed = self._opened_values(path, dtype)
            if offset < 0 or count < 0 or offset + count > dataset.shape[0]:
                raise ValueError(f"{path!r} has {dataset.shape[0]} elements, not {offset}+{count}")
            htype = hdf5_type(dtype)
            data = np.empty(count * htype.get_size(), np.uint8)
            if count:
                if compressed:
                    check_chunks(dataset, offset, count)
                space = dataset.id.get_space()
                space.select_hyperslab((offset,), (count,))
                dataset.id.read(h5s.create_simple((count,)), space, data, mtype=htype)
            return data

    def _opened_values(self, path: str, dtype: str) -> tuple[h5py.Dataset, bool]:
        return _kept(self._values, path, lambda: self._open_values(path, dtype))

    def _open_values(self, path: str, dtype: str) -> tuple[h5py.Dataset, bool]:
        dataset = h5py.Dataset(self._dataset(path))
        if dataset.ndim != 1 or not dataset.id.get_type().equal(hdf5_type(dtype)):
            raise ValueError(f"{path!r} does not hold a sequence of {dtype}")
        chunk = (dataset.chunks or (0,))[0]
        if chunk * dataset.id.get_type().get_size() > _MAX_CHUNK_BYTES:
            raise ValueError(f"{path!r} has chunks of {chunk} elements, more than a capture has")
        # Every chunk of a capture was written, so a shape that needs more of them is a false one.
        if dataset.shape[0] > dataset.id.get_num_chunks() * chunk:
            raise ValueError(f"{path!r} claims {dataset.shape[0]} elements that the file does not hold")
        return dataset, check_filters(dataset)

    # A capture has thousands of small datasets: h5py's low level opens them in a third of the time.

    def _dataset(self, path: str) -> h5d.DatasetID:
        parent, _, name = path.rpartition("/")
        dataset = self._opened(self._group(parent), name, path)
        if not isinstance(dataset, h5d.DatasetID):
            raise ValueError(f"{path!r} is no dataset")
        creation = dataset.get_create_plist()
        if creation.get_layout() == h5d.VIRTUAL or creation.get_external_count():
            raise ValueError(f"{path!r} takes its values from another file, as no capture does")
        return dataset

    def _group(self, path: str) -> h5g.GroupID:
        return _kept(self._groups, path, lambda: self._open_group(path)) if path else self._root

    def _open_group(self, path: str) -> h5g.GroupID:
        parent, _, name = path.rpartition("/")
        group = self._opened(self._group(parent), name, path)
        if not isinstance(group, h5g.GroupID):
            raise ValueError(f"{path!r} leads through a dataset")
        return group

    def _opened(self, group: h5g.GroupID, name: str, path: str) -> h5g.GroupID | h5d.DatasetID:
        link = name.encode()
        if not group.links.exists(link) or group.links.get_info(link).type != h5l.TYPE_HARD:
            raise ValueError(f"{path!r} leads through a link to another place, as in no capture")
        return h5o.open(group, link)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValue:
    """The values of one tensor in a capture file, read when called. It can be pickled.

    Attributes:
        file: the capture file.
        inode: which file had that name when it was opened.
        path: of the dataset.
        dtype: the torch name without `torch.`.
        offset: of the first element.
        shape: of the tensor.
        digest: checksum of its bytes; empty where none is known.
        what: the tensor in words, for messages.
    """

    file: Path
    inode: int
    path: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    digest: str
    what: str

    def __call__(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            CaptureError: the file is damaged, or is no longer the one that was opened.
        """
        data = opened(self.file, self.inode).elements(self.path, self.dtype, self.offset, prod(self.shape))
        self._require_digest(checksum(data))
        return torch_tensor(data, self.dtype, self.shape)

    def blocks(self) -> Iterator[torch.Tensor]:
        """Yield the elements in row-major order, in flat tensors, at least one.

        Raises:
            CaptureError: the file is no longer the one that was opened, or is damaged; that its checksum
                does not match is found at the end.
        """
        source = opened(self.file, self.inode)
        step, count = source.block_elements(self.path, self.dtype), prod(self.shape)
        digest = Checksum()
        for start in range(0, max(count, 1), step):
            size = min(step, count - start)
            data = source.elements(self.path, self.dtype, self.offset + start, size)
            digest.update(data)
            yield torch_tensor(data, self.dtype, (size,))
        self._require_digest(digest.hex())

    def _require_digest(self, digest: str) -> None:
        if self.digest and digest != self.digest:
            raise CaptureError(
                f"{self.file}: {self.what} does not match its checksum: the file was damaged after it was "
                "written. Copy it again from where it was made, or make the capture again."
            )


def opened(path: Path, inode: int) -> CaptureSource:
    """Return the open capture file that had the inode `inode` when it was first opened."""
    return _opened(path, inode)


@contextlib.contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Turn what a broken file raises into a `CaptureError` that names the file."""
    try:
        yield
    except CaptureError:
        raise
    except _BROKEN as error:
        raise CaptureError(
            f"{path}: damaged or truncated ({type(error).__name__}: {str(error)[:500]}). "
            "Copy it again from where it was made, or make the capture again."
        ) from error


def _kept(opened: OrderedDict[str, _Opened], path: str, open_it: Callable[[], _Opened]) -> _Opened:
    """Return what is open, or open it and let go of what was used longest ago."""
    if path not in opened:
        opened[path] = open_it()
        while len(opened) > _KEPT_OPEN:
            opened.popitem(last=False)
    opened.move_to_end(path)
    return opened[path]


@functools.cache
def _table_types(dtype: np.dtype) -> tuple[h5t.TypeID, h5t.TypeID]:
    """Return the types of a table's rows in the file and in memory, where texts are Python's."""
    return h5t.py_create(dtype, logical=True), h5t.py_create(dtype)


def _open(path: Path) -> h5py.File:
    # Chunks are read once: keeping them would take megabytes of memory for every dataset.
    try:
        file = h5py.File(path, "r", rdcc_nbytes=0)
    except BlockingIOError:
        # Whoever is writing it holds the lock.
        file = h5py.File(path, "r", rdcc_nbytes=0, locking=False)
    config = file.id.get_mdc_config()
    config.set_initial_size, config.initial_size = True, _METADATA_BYTES
    config.min_size = config.max_size = _METADATA_BYTES
    file.id.set_mdc_config(config)
    return file


@functools.lru_cache(maxsize=64)
def _opened(path: Path, inode: int) -> CaptureSource:
    with damage_explained(path):
        now = os.stat(path).st_ino
    if now != inode:
        raise CaptureError(f"{path}: another file has this name since the capture was opened. Open it again.")
    return CaptureSource(path)
