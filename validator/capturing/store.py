"""One rank's capture file, as it is written.

What is added stays in memory until `commit`, which appends it and flushes. A killed run can lose what
came after its last commit, hardly ever what came before, because between two commits nothing that the
file's directory of chunks refers to is moved or overwritten:

- HDF5's metadata cache evicts nothing, so metadata reaches the file in the flush alone, and the file is
  closed and opened again after a commit once the cache holds many edges;
- a compressed chunk is written once: each large value starts at a chunk of its own;
- room is asked of the disk before HDF5 is touched, so a full disk leaves the last commit as it was.
"""

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from validator.errors import CaptureError

from .copies import Layout
from .datasets import Edge, Source, Table
from .digest import checksum, statistics
from .formats_hdf5 import dtype_name, element_bytes
from .levels import NOTHING, Indices, Level, is_even, kept, one_in_of
from .records import Statistics
from .room import flush, reserve, what_failed
from .schema import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_DTYPE,
    MANIFEST,
    PARAMETERS,
    TABLES,
    source_name,
)

__all__ = ["CaptureFile"]

_LARGE_BYTES = 64 << 10
_LINK_BYTES = 512
_REMEMBERED = 1 << 17
_FAILURE_BYTES = 512
_CACHED_EDGES = 256
"""After so many new edges the file is opened anew."""
_EDGE_BYTES = 140 << 10
"""What HDF5 holds in memory of an edge, its index and its elements."""


class CaptureFile:
    """A capture file of one rank that is being written.

    Args:
        path: the file; what it held is replaced.
        rank: this rank.
        world_size: number of ranks of the run.
        capture_id: the same in all files of a capture, and in no other's.
        level: how much of each tensor is kept.
    """

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        world_size: int,
        capture_id: str = "",
        level: Level = Level.FULL,
    ) -> None:
        self.path = path
        self._level = level
        self.pending_bytes = 0
        self.committed_values = 0
        self._added_values = 0
        self._cached_edges = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            self._create(rank, world_size, capture_id)
        except OSError as error:
            os.close(self._descriptor)
            raise CaptureError(self._failed(error)) from error

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
        # Of a parameter, whose rows are hashed if it is large, every bit counts.
        level = Level.FULL if edge.startswith(PARAMETERS) else self._level
        layout = _thinned(layout, one_in_of(level, dtype, layout.shape))
        target = self._edge(edge, dtype, layout)
        if layout.one_in == NOTHING:
            target.add(row, None, self._layout(layout), 0, digest, statistics(tensor))
            self._added_values += 1
            self.pending_bytes += INDEX_DTYPE.itemsize
            return
        # The same bits in another shape or place have another sample.
        key = (dtype, digest, "" if layout.one_in is None else layout.to_json())
        known = self._known.get(key)
        if known is None:
            if layout.one_in is not None:
                data = _sample(tensor, layout)
            source = target.sources.get((dtype, data.size >= _LARGE_BYTES))
            if source is None:
                source = self._new_source(target, dtype, data.size)
            known = (source, source.append(data), statistics(tensor))
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = known
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
        edges = [e for e in self._edges.values() if e.pending]
        sources = [s for s in self._sources if s.pending]
        try:
            parts: list[Edge | Source | Table] = [*edges, *sources, *self._tables.values()]
            reserve(self._descriptor, sum(part.room_bytes() for part in parts))
            for edge in edges:
                edge.write(self._file)
            for source in sources:
                source.write(self._file)
            for table in self._tables.values():
                table.write(self._file)
            flush(self._file, self._descriptor)
            if len(self._edges) - self._cached_edges >= _CACHED_EDGES:
                self._open_anew()
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
            reserve(self._descriptor, _LINK_BYTES * len(self._edges) + 2 * len(manifest or ""))
            for edge in self._edges.values():
                edge.link(self._file)
            if manifest is not None:
                self._file.create_dataset(
                    MANIFEST, data=manifest, dtype=h5py.string_dtype(), track_times=False
                )
            flush(self._file, self._descriptor)
            self._file.attrs.modify("complete", True)
            flush(self._file, self._descriptor)
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

    def _create(self, rank: int, world_size: int, capture_id: str) -> None:
        reserve(self._descriptor, 0)
        self._file = h5py.File(self.path, "w", libver="earliest", locking=False)
        reserve(self._descriptor, 0)
        _keep_metadata(self._file)
        self._tables = {name: Table(self._file, name, dtype) for name, dtype in TABLES.items()}
        self._edges: dict[str, Edge] = {}
        self._sources: list[Source] = []
        self._layouts: dict[str, int] = {}
        self._known: dict[tuple[str, str, str], tuple[Source, int, Statistics | None]] = {}
        attributes = self._file.attrs
        attributes["format"] = FORMAT
        attributes["format_version"] = FORMAT_VERSION
        attributes["rank"] = rank
        attributes["world_size"] = world_size
        attributes["capture_id"] = capture_id
        # Both are there from the start at their full size: changing them later takes no room on a full disk.
        attributes["complete"] = False
        attributes.create("failure", b"", dtype=f"S{_FAILURE_BYTES}")
        flush(self._file, self._descriptor)

    def _open_anew(self) -> None:
        """Give back the memory that HDF5 holds for what was written."""
        parts: list[Edge | Source | Table] = [*self._edges.values(), *self._sources, *self._tables.values()]
        for part in parts:
            part.release()
        self._file.close()
        self._file = h5py.File(self.path, "r+", libver="earliest", locking=False)
        _keep_metadata(self._file)
        self._cached_edges = len(self._edges)

    def _edge(self, path: str, dtype: str, layout: Layout) -> Edge:
        edge = self._edges.get(path)
        if edge is None:
            edge = self._edges[path] = Edge(path, dtype, layout)
            self.pending_bytes += _EDGE_BYTES
        return edge

    def _new_source(self, edge: Edge, dtype: str, size_bytes: int) -> Source:
        large = size_bytes >= _LARGE_BYTES
        path = f"{edge.path}/{source_name(dtype, large=large)}"
        source = Source(path, len(self._sources), dtype, size_bytes, large=large)
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

    def _failed(self, error: OSError) -> str:
        return (
            f"{self.path}: {what_failed(error)}; the capture stopped after {self._added_values} values, of "
            f"which {self.committed_values} are in the file: open_capture(..., allow_incomplete=True) reads "
            "them. Make room, or capture less: include= takes globs over modules, calls= the calls to keep."
        )


def _thinned(layout: Layout, one_in: int) -> Layout:
    """Return the layout of a tensor of which one of so many elements is kept."""
    if one_in == 1:
        return replace(layout, starts=None)
    layout = replace(layout, one_in=one_in)
    is_sample = one_in != NOTHING and layout.starts is not None
    if is_sample and not is_even(len(_places(layout)), layout.shape, one_in):
        layout = replace(layout, starts=None)
    return layout


def _places(layout: Layout) -> Indices:
    whole = layout.global_shape if layout.starts else None
    return kept(layout.shape, layout.one_in or 1, starts=layout.starts, whole=whole)


def _sample(tensor: torch.Tensor, layout: Layout) -> np.ndarray:
    """Return the bytes of the elements that are kept."""
    places = torch.from_numpy(_places(layout))
    flat = tensor.reshape(-1)
    if flat.element_size() == 1:  # float8 can't be indexed
        return element_bytes(flat.view(torch.uint8)[places])
    return element_bytes(flat[places])


def _keep_metadata(file: h5py.File) -> None:
    config = file.id.get_mdc_config()
    config.evictions_enabled = False
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0
    file.id.set_mdc_config(config)
