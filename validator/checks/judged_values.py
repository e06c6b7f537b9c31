"""The values of all judged edges in one file, so that a slice of one can be read when somebody looks at it.

One HDF5 dataset an edge, in compressed chunks, whose elements have three fields: `oracle`, `candidate` and
`allowed`, how far apart the two may be: 0 where nothing is computed, so that any difference is a fault; NaN
where rounding decides a value altogether; inf where nothing is judged. Data only: reading it runs no code and
follows no link.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import torch
from h5py import h5l

from validator.checks.edge_values import EdgeValues
from validator.checks.findings import Check, Judgement
from validator.errors import CaptureError

__all__ = ["FIELDS", "JudgedValues", "StoredEdge", "ValuesWriter"]

FIELDS = ("oracle", "candidate", "allowed")
"""What is known of each element."""

_MEANINGS = frozenset({"batch", "token", "head", "channel", "expert", ""})
"""What a dim may mean."""

_FORMAT, _VERSION = "validator judged values", 1
_BROKEN = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEdge:
    """Which edge the values are of: as in `Judgement`.

    Attributes:
        rank: whose term of a sum it is; None of other edges.
        ranks: whose copies were judged.
        dims: meaning of each dim.
        shape: of the edge.
    """

    module: str
    check: Check
    path: str
    call: int
    order: int
    into: str | None = None
    rank: int | None = None
    ranks: tuple[int, ...]
    dims: tuple[str, ...]
    shape: tuple[int, ...]


class ValuesWriter:
    """Writes the values of edges as they are judged. Use it in a `with` statement.

    Args:
        path: the file, replaced if it is there.

    Raises:
        CaptureError: it can't be written. So does `put`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._explained():
            self._file = h5py.File(path, "w")
            self._file.attrs.update({"format": _FORMAT, "format_version": _VERSION})

    def put(self, edge: StoredEdge, values: EdgeValues) -> None:
        """Write one edge."""
        held = np.empty(edge.shape, _type(values.dtype))
        held["oracle"], held["candidate"] = values.exact.numpy(), values.cand.numpy()
        allowed = values.allowed if values.judged is None else _where_judged(values)
        held["allowed"] = allowed.numpy()
        options = {"chunks": True, "compression": "lzf", "shuffle": True} if held.size and edge.shape else {}
        with self._explained():
            dataset = self._file.create_dataset(f"{len(self._file):06d}", data=held, **options)
            dataset.attrs.update(_attributes(edge))

    def __enter__(self) -> "ValuesWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._explained():
            self._file.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:
            raise CaptureError(
                f"{self._path} can't be written: {error}. Name a folder with room for the values of all edges"
            ) from None


class JudgedValues:
    """Reads single edges, and slices of them.

    Args:
        path: a file that `check --keep FOLDER` wrote: `FOLDER/judged.h5`.

    Raises:
        CaptureError: it is no such file, or damaged. So does `read`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._explained():
            self._file = h5py.File(path, "r")
            known = self._file.attrs.get("format"), int(self._file.attrs.get("format_version", 0))
            if known != (_FORMAT, _VERSION):
                raise ValueError(f"its format is {known!r}, not {(_FORMAT, _VERSION)!r}")
            self._datasets = {_stored(self._dataset(name)): self._dataset(name) for name in self._file}

    @property
    def edges(self) -> tuple[StoredEdge, ...]:
        """All edges, in the order in which they were judged."""
        return tuple(self._datasets)

    def find(self, judgement: Judgement) -> StoredEdge | None:
        """Return the edge that a judgement is of, or None where its values are not kept.

        Of an edge that ranks hold different copies of, the copy of the rank that the judgement names.
        """
        key = (judgement.module, judgement.check, judgement.path, judgement.call, judgement.into)
        found = [e for e in self._datasets if (e.module, e.check, e.path, e.call, e.into) == key]
        if judgement.check is Check.PARTIAL:
            found = [edge for edge in found if edge.rank == judgement.rank]
        named = [edge for edge in found if judgement.rank in edge.ranks]
        return next(iter([*named, *found]), None)

    def read(self, edge: StoredEdge, field: str, index: tuple[slice | int, ...] = ()) -> np.ndarray:
        """Read one field of a slice of an edge.

        Args:
            edge: one of `edges`.
            field: one of `FIELDS`.
            index: for each dim, from the first, what to read; a dim that is not named is read whole.

        Returns:
            The slice in float64.
        """
        if field not in FIELDS:
            raise KeyError(f"{field!r} is no field of judged values; those are {', '.join(FIELDS)}")
        with self._explained():
            return np.asarray(self._datasets[edge].fields(field)[(*index, ...)], np.float64)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _dataset(self, name: str) -> h5py.Dataset:
        """Return a dataset of this very file."""
        if self._file.id.links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise ValueError(f"{name!r} is a link out of its place")
        dataset = self._file[name]
        if not isinstance(dataset, h5py.Dataset) or not _is_ours(dataset.dtype):
            raise ValueError(f"{name!r} holds no values of an edge")
        if dataset.is_virtual or dataset.external:
            raise ValueError(f"the values of {name!r} lie in another file")
        return dataset

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            raise CaptureError(
                f"{self._path} can't be read as judged values: {error}. Give the judged.h5 that "
                "`validator check --keep FOLDER` wrote"
            ) from None


def _type(dtype: torch.dtype) -> np.dtype:
    """Return what an element takes: a float32 holds any narrower candidate, and what it is held to."""
    is_narrow = dtype.is_floating_point and dtype.itemsize < 4
    wide = "<f8" if dtype == torch.float64 or not dtype.is_floating_point else "<f4"
    return np.dtype([("oracle", "<f4" if is_narrow else "<f8"), ("candidate", wide), ("allowed", "<f4")])


def _is_ours(dtype: np.dtype) -> bool:
    return dtype in [_type(kind) for kind in (torch.bfloat16, torch.float32, torch.float64)]


def _where_judged(values: EdgeValues) -> torch.Tensor:
    return values.allowed.masked_fill(~values.is_judged(), math.inf)


def _attributes(edge: StoredEdge) -> dict[str, Any]:
    names = ("module", "check", "path", "call", "order", "into", "rank")
    held = {name: getattr(edge, name) for name in names}
    attributes = {name: str(x) if isinstance(x, str) else x for name, x in held.items() if x is not None}
    text = h5py.string_dtype()
    return {
        **attributes,
        "ranks": np.array(edge.ranks, np.int64),
        "dims": np.array(edge.dims, dtype=text) if edge.dims else np.empty(0, text),
    }


def _stored(dataset: h5py.Dataset) -> StoredEdge:
    attributes = dataset.attrs
    dims = tuple(str(dim) for dim in attributes["dims"])
    if len(dims) != dataset.ndim or not _MEANINGS.issuperset(dims):
        raise ValueError(
            f"{dataset.name!r} of shape {dataset.shape} has dims {str(dims)[:80]}, not {dataset.ndim} of "
            f"{', '.join(map(repr, sorted(_MEANINGS)))}"
        )
    return StoredEdge(
        module=str(attributes["module"]),
        check=Check(attributes["check"]),
        path=str(attributes["path"]),
        call=int(attributes["call"]),
        order=int(attributes["order"]),
        into=str(attributes["into"]) if "into" in attributes else None,
        rank=int(attributes["rank"]) if "rank" in attributes else None,
        ranks=tuple(int(rank) for rank in attributes["ranks"]),
        dims=dims,
        shape=tuple(dataset.shape),
    )
