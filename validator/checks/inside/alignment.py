"""Which of the candidate's operators stands for which of the reference's, by global sequence alignment.

Both sequences keep their order. Two operators may be paired if they made equally many numbers; they are the
likelier a pair the more of name, shape and dtype they share and the closer their values are. What only one
side has (a cast, a copy, a scaling, all that a fused kernel stands for) is a gap and shifts nothing.

Source: Needleman and Wunsch, "A general method applicable to the search for similarities in the amino acid
sequence of two proteins", J. Mol. Biol. 48 (1970).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from validator.align.inside import TraceOperator, TraceResult
from validator.checks.operator_log import LoggedCall, is_trivial, sample

__all__ = ["Ours", "Pair", "align", "bare_name", "does_nothing", "is_foreign", "ours_of"]

NAME, LIKE, UNLIKE = 2.0, 1.0, -1.0
SHAPE, DTYPE = 0.5, 0.25
VALUES = 4.0
"""What two operators of one name, of one family or of neither are worth as a pair, what shape and dtype add,
and what values that agree to `DIGITS` bits add at most. None of it decides a verdict: a wrong pair is found
out by its values.
"""

DIGITS = 7.0
GAP, TRIVIAL_GAP = -1.0, -0.05
BAND = 400
"""How far from the diagonal pairs are looked for, in sequences of thousands of operators."""

_FAMILIES = (
    ("addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "einsum", "linear", "matmul", "mm", "mv"),
    ("add", "add_", "rsub", "sub"),
    ("div", "mul"),
    ("masked_fill", "where"),
    ("amax", "max"),
    ("cat", "stack"),
    ("mean", "sum"),
    ("pow", "square"),
    ("_softmax", "_safe_softmax", "_log_softmax"),
)

_BLANKS = ("empty", "empty_like", "zeros_like")

_VIEWS = frozenset(
    (
        "alias",
        "as_strided",
        "detach",
        "expand",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    )
)


@dataclass(slots=True, kw_only=True)
class Ours:
    """One of the candidate's operators that has values.

    Attributes:
        position: among all of the call's operators.
        name: without overload; with its namespace if that is not aten.
        result: the one of its results that it is known by.
    """

    position: int
    name: str
    result: TraceResult
    _samples: dict[tuple[int, ...], Tensor | None] = field(default_factory=dict)

    def value(self, shape: tuple[int, ...], ranks: Collection[int]) -> Tensor | None:
        """Return `[*]` its value in a shape, or None."""
        assert self.result.read is not None
        return self.result.read(shape, ranks)

    def samples(self, shape: tuple[int, ...], ranks: Collection[int]) -> Tensor | None:
        """Return some elements of its value in a shape."""
        if shape not in self._samples:
            value = self.value(shape, ranks)
            self._samples[shape] = None if value is None else sample(value)
        return self._samples[shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An operator of the reference, and the candidate's that stands for it."""

    theirs: int
    ours: Ours


def ours_of(operators: Sequence[TraceOperator]) -> list[Ours]:
    """Return the candidate's operators that have floating values."""
    found = []
    for position, operator in enumerate(operators):
        result = next((x for x in operator.results if x.read is not None and "float" in x.dtype), None)
        if result is not None:
            found.append(Ours(position=position, name=bare_name(operator.name), result=result))
    return found


def align(calls: Sequence[LoggedCall], ours: Sequence[Ours], ranks: Collection[int]) -> list[Pair]:
    """Pair the reference's operators with the candidate's.

    Args:
        calls: the reference's, in order.
        ours: the candidate's, in order.
        ranks: whose copies of replicated tensors to take.
    """
    theirs = [i for i, call in enumerate(calls) if call.shape is not None and call.samples is not None]
    return _Table(calls, theirs, ours, ranks).pairs


class _Table:
    def __init__(
        self, calls: Sequence[LoggedCall], theirs: Sequence[int], ours: Sequence[Ours], ranks: Collection[int]
    ) -> None:
        self._calls, self._theirs, self._ours, self._ranks = calls, theirs, ours, ranks

    @cached_property
    def pairs(self) -> list[Pair]:
        """The pairs of the best alignment."""
        rows, columns = len(self._theirs), len(self._ours)
        if not rows or not columns:
            return []
        band = max(BAND, -(-columns // rows) + 1)  # the bands of neighbouring rows overlap
        best = np.full((rows + 1, columns + 1), -math.inf)
        came = np.zeros((rows + 1, columns + 1), dtype=np.int8)
        down = [_gap(self._calls[i].name, is_view=self._calls[i].is_view) for i in self._theirs]
        right = [_gap(x.name, is_view=False) for x in self._ours]
        best[0, 0] = 0.0
        for i in range(rows + 1):
            near = round(i * columns / rows)
            for j in range(max(0, near - band), min(columns, near + band) + 1):
                options = [(best[i, j], came[i, j])] if i == j == 0 else []
                if i:
                    options.append((best[i - 1, j] + down[i - 1], 1))
                if j:
                    options.append((best[i, j - 1] + right[j - 1], 2))
                if i and j:
                    options.append((best[i - 1, j - 1] + self._worth(i - 1, j - 1), 3))
                best[i, j], came[i, j] = max(options)
        found = []
        i, j = rows, columns
        while i or j:
            step = came[i, j]
            if step == 3:
                found.append(Pair(theirs=self._theirs[i - 1], ours=self._ours[j - 1]))
            i, j = i - (step in (1, 3)), j - (step in (2, 3))
        return found[::-1]

    def _worth(self, i: int, j: int) -> float:
        call, ours = self._calls[self._theirs[i]], self._ours[j]
        assert call.shape is not None
        assert call.samples is not None
        if math.prod(call.shape) not in ours.result.sizes:
            return -math.inf
        if call.is_trivial and not self._may_be_held(i, ours):
            return -math.inf
        found = ours.samples(call.shape, self._ranks)
        if found is None or found.shape != call.samples.shape:
            return -math.inf
        worth = VALUES * _closeness(call.samples, found)
        name = call.name if does_nothing(ours.name) else self._works[self._theirs[i]]
        worth += NAME if name == ours.name else LIKE if _is_akin(name, ours.name) else UNLIKE
        worth += DTYPE * (str(call.dtype) == f"torch.{ours.result.dtype}")
        return worth + SHAPE * (call.shape == ours.result.shape)

    @cached_property
    def _works(self) -> list[str]:
        """Names of the reference's operators; of a view or a copy of the one that made what it shows."""
        made: dict[int | None, str] = {}
        names = []
        for call in self._calls:
            name = made.get(_held(call), call.name)
            names.append(name)
            made |= {slot: name for slot in call.made if slot is not None}
        return names

    def _may_be_held(self, i: int, ours: Ours) -> bool:
        """Tell whether a view or a copy may hold what an operator of the candidate's made."""
        name = self._works[self._theirs[i]]
        if does_nothing(ours.name) or name == ours.name:
            return True
        return _is_akin(name, ours.name) or is_foreign(ours.name, name)


def is_foreign(name: str, theirs: str) -> bool:
    """Tell whether the candidate has a kernel of its own, where the reference has several operators."""
    return "." in name or ("attention" in name and "attention" not in theirs)


def does_nothing(name: str) -> bool:
    """Tell whether an operator of the candidate's only changes the form in which values are held."""
    return is_trivial(name) or name in _VIEWS


def bare_name(name: str) -> str:
    """Return the name of a recorded operator without overload; with its namespace if that is not aten."""
    space, _, rest = name.partition(".")
    name = rest.partition(".")[0]
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    return name if space == "aten" else f"{space}.{name}"


def _held(call: LoggedCall) -> int | None:
    """Return the slot whose values an operator only holds in another form; None if it makes values."""
    if not call.is_trivial or not call.needs or call.name in _BLANKS:
        return None
    return call.needs[-1] if call.written else call.needs[0]


def _closeness(theirs: Tensor, ours: Tensor) -> float:
    """Return how many bits two samples share, from 0 to 1 for `DIGITS` and more."""
    usable = theirs.isfinite() & ours.isfinite() & (theirs.abs() < FAR) & (ours.abs() < FAR)
    if not bool(usable.any()):
        return 0.0
    size = torch.linalg.vector_norm(theirs[usable])
    apart = float(torch.linalg.vector_norm(ours[usable] - theirs[usable]) / size) if size else math.inf
    if not size:
        return float(not bool(ours[usable].any()))
    return min(max(-math.log2(apart) / DIGITS, 0.0), 1.0) if apart else 1.0


FAR = 1e4
"""From here on a number may stand for a masked score."""


def _gap(name: str, *, is_view: bool) -> float:
    return TRIVIAL_GAP if is_view or is_trivial(name) else GAP


def _is_akin(a: str, b: str) -> bool:
    if "attention" in a and "attention" in b:
        return True
    return any(a in family and b in family for family in _FAMILIES)
