"""Writes the values of all judged edges to a file, as long as there is room for them."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np
import torch

from validator.capturing.room import flush, reserve, what_failed
from validator.checks.edge_values import EdgeValues
from validator.checks.judged_values import FORMAT, VERSION, StoredEdge, attributes_of, element_type

__all__ = ["ValuesWriter"]

_LARGEST = torch.finfo(torch.float32).max


class ValuesWriter:
    """Writes the values of edges as they are judged. Use it in a `with` statement.

    No verdict depends on them: where they can't be written it stops writing, and judging goes on.

    Args:
        path: the file, replaced if it is there.

    Attributes:
        note: why it stopped writing, and what the file holds; None where it holds all.
    """

    def __init__(self, path: Path) -> None:
        self.note: str | None = None
        self._path, self._edges = path, 0
        self._opened = ExitStack()
        with self._noted():
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            self._opened.callback(os.close, self._descriptor)
            reserve(self._descriptor, 0)
            self._file = self._opened.enter_context(h5py.File(path, "w", locking=False))
            reserve(self._descriptor, 0)
            self._file.attrs.update({"format": FORMAT, "format_version": VERSION})
            flush(self._file, self._descriptor)

    def put(self, edge: StoredEdge, values: EdgeValues) -> None:
        """Write one edge, unless writing has stopped."""
        if self.note is not None:
            return
        held = _elements_of(values, edge.shape)
        options = {"chunks": True, "compression": "lzf", "shuffle": True} if held.size and edge.shape else {}
        with self._noted():
            reserve(self._descriptor, held.nbytes)
            dataset = self._file.create_dataset(f"{self._edges:06d}", data=held, **options)
            dataset.attrs.update(attributes_of(edge))
            flush(self._file, self._descriptor)
            self._edges += 1

    def __enter__(self) -> "ValuesWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._noted():
            self._opened.close()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:
            why = what_failed(error)
            self.note = self.note or (
                f"{self._path} holds the values of the first {self._edges} edges alone: {why}; no verdict "
                "depends on them. To look at those of all, make room and check again with another --keep"
            )


def _elements_of(values: EdgeValues, shape: tuple[int, ...]) -> np.ndarray:
    held = np.empty(shape, element_type(values.dtype))
    allowed = values.allowed
    if held.dtype["allowed"] == np.float32:
        # More than float32 holds is not inf, which says that nothing is judged.
        allowed = torch.where(allowed.isfinite(), allowed.clamp(max=_LARGEST), allowed)
    held["allowed"] = allowed.numpy()
    with np.errstate(over="ignore"):  # beyond what narrower formats hold too
        held["oracle"], held["candidate"] = values.exact.numpy(), values.cand.numpy()
    return held
