"""The values of all judged edges in one file, so that a slice of one can be read when somebody looks at it.

One HDF5 dataset an edge, in compressed chunks, whose elements have three fields: `oracle`, `candidate` and
`allowed`, how far apart the two may be, as `EdgeValues.allowed` defines it. Before compression an element
takes 12 bytes beside a candidate's format of less than 32 bits, else up to 24. Data only: reading it runs no
code and follows no link.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from h5py import h5l

from validator.align.dims import MEANINGS
from validator.checks.findings import Check, Judgement
from validator.errors import CaptureError

__all__ = [
    "FORMAT",
    "VERSION",
    "Elements",
    "JudgedValues",
    "StoredEdge",
    "attributes_of",
    "element_type",
]

FORMAT, VERSION = "validator judged values", 2

_FIELDS = ("oracle", "candidate", "allowed")
_DIMS = MEANINGS | {""}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """A slice of an edge: three arrays of its shape, in float64.

    Attributes:
        oracle: what the candidate is held to.
        candidate: its values.
        allowed: how far apart they may be; NaN and inf as in the file.
    """

    oracle: npt.NDArray[np.float64]
    candidate: npt.NDArray[np.float64]
    allowed: npt.NDArray[np.float64]


class JudgedValues:
    """Reads single edges, and slices of them; the file is open only while it does.

    Args:
        path: a file that `check --keep FOLDER` wrote: `FOLDER/judged.h5`.

    Raises:
        CaptureError: it is no such file, or damaged. So does `read`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as file:
            known = file.attrs.get("format"), int(file.attrs.get("format_version", 0))
            if known != (FORMAT, VERSION):
                raise ValueError(f"its format is {known!r}, not {(FORMAT, VERSION)!r}")
            self._names = {_stored(_dataset(file, name)): name for name in file}

    @property
    def edges(self) -> tuple[StoredEdge, ...]:
        """All edges, in the order in which they were judged."""
        return tuple(self._names)

    def find(self, judgement: Judgement) -> StoredEdge | None:
        """Return the edge that a judgement is of, or None where its values are not kept.

        Of an edge that ranks hold different copies of, the copy of the rank that the judgement names.
        """
        key = (judgement.module, judgement.check, judgement.path, judgement.call, judgement.into)
        found = [e for e in self._names if (e.module, e.check, e.path, e.call, e.into) == key]
        if judgement.check is Check.PARTIAL:
            found = [edge for edge in found if edge.rank == judgement.rank]
        named = [edge for edge in found if judgement.rank in edge.ranks]
        return next(iter([*named, *found]), None)

    def read(self, edge: StoredEdge, index: tuple[slice | int, ...] = ()) -> Elements:
        """Read a slice of an edge, and of the file no more than the chunks that it lies in.

        Args:
            edge: one of `edges`.
            index: for each dim, from the first, what to read; a dim that is not named is read whole.
        """
        name = self._names[edge]
        with self._opened() as file:
            dataset = _dataset(file, name)
            if _stored(dataset) != edge:
                raise ValueError("it was written anew since it was opened")
            held = dataset[(*index, ...)]
        oracle, candidate, allowed = (np.asarray(held[field], np.float64) for field in _FIELDS)
        return Elements(oracle=oracle, candidate=candidate, allowed=allowed)

    @contextmanager
    def _opened(self) -> Iterator[h5py.File]:
        try:
            with h5py.File(self._path, "r") as file:
                yield file
        except _BROKEN as error:
            raise CaptureError(
                f"{self._path} can't be read as judged values: {error}. Give the judged.h5 that "
                "`validator check --keep FOLDER` wrote"
            ) from None


def element_type(dtype: torch.dtype) -> np.dtype:
    """Return what an element takes, beside a candidate's format.

    A float32 holds any narrower format with half its smallest spacing; half of its own is less than it holds.
    """
    if dtype.is_floating_point and dtype.itemsize < 4:
        return np.dtype([(field, "<f4") for field in _FIELDS])
    candidate = "<f4" if dtype == torch.float32 else "<f8"
    return np.dtype([("oracle", "<f8"), ("candidate", candidate), ("allowed", "<f8")])


def attributes_of(edge: StoredEdge) -> dict[str, Any]:
    """Return the attributes of an edge's dataset."""
    names = ("module", "check", "path", "call", "order", "into", "rank")
    held = {name: getattr(edge, name) for name in names}
    attributes = {name: str(x) if isinstance(x, str) else x for name, x in held.items() if x is not None}
    text = h5py.string_dtype()
    return {
        **attributes,
        "ranks": np.array(edge.ranks, np.int64),
        "dims": np.array(edge.dims, dtype=text) if edge.dims else np.empty(0, text),
    }


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset of this very file."""
    if file.id.links.get_info(name.encode()).type != h5l.TYPE_HARD:
        raise ValueError(f"{name!r} is a link out of its place")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or not _is_ours(dataset.dtype):
        raise ValueError(f"{name!r} holds no values of an edge")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"the values of {name!r} lie in another file")
    return dataset


def _is_ours(dtype: np.dtype) -> bool:
    return dtype in [element_type(kind) for kind in (torch.bfloat16, torch.float32, torch.float64)]


def _stored(dataset: h5py.Dataset) -> StoredEdge:
    attributes = dataset.attrs
    dims = tuple(str(dim) for dim in attributes["dims"])
    if len(dims) != dataset.ndim or not _DIMS.issuperset(dims):
        raise ValueError(
            f"{dataset.name!r} of shape {dataset.shape} has dims {str(dims)[:80]}, not {dataset.ndim} of "
            f"{', '.join(map(repr, sorted(_DIMS)))}"
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
