"""Operators that choose by value (`topk`, `argmax`): what they chose, and what the code goes on with.

Shape legend: * = any shape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from validator.checks.aten_calls import arguments_by_name
from validator.checks.operators import operator_name

__all__ = ["Choice", "Selection", "Selections", "selection"]

_SELECTORS = frozenset(("topk", "sort", "argmax", "argmin", "max", "min"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What an operator chose by itself.

    Attributes:
        dim: along which it chose.
        indices: `[*]` int64.
        has_values: whether it returns the values beside the indices.
        is_ordered: whether the order of what was chosen counts.
        is_best: whether it chose the largest values, some of several.
    """

    dim: int
    indices: Tensor
    has_values: bool
    is_ordered: bool
    is_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice in the code, and what the code goes on with.

    Attributes:
        name: unique within the code, the same in every run of it.
        op: aten name of the operator.
        source: `[*]` float64, what is chosen from.
        own: what this run would choose.
        indices: what the code goes on with.
        is_followed: whether these were prescribed.
    """

    name: str
    op: str
    source: Tensor
    own: Selection
    indices: Tensor
    is_followed: bool

    def values_at(self, indices: Tensor) -> Tensor:
        """Return `[*]` float64, the values at a choice: in its order, or where that is free sorted."""
        wide = indices if indices.dim() == self.source.dim() else indices.unsqueeze(self.own.dim)
        values = self.source.gather(self.own.dim, wide)
        return values if self.own.is_ordered else values.sort(self.own.dim, descending=True).values


class Selections:
    """The choices of one run of a piece of code.

    Args:
        prescribe: gives the indices to go on with, by a choice's name and the code's own indices, or None to
            let the code choose.

    Attributes:
        made: every choice, in order.
    """

    def __init__(self, prescribe: Callable[[str, Tensor], Tensor | None]) -> None:
        self._prescribe = prescribe
        self.made: list[Choice] = []

    def choose(self, func: Any, args: Any, kwargs: Any, result: Any, source: Tensor) -> Choice | None:
        """Return the choice that an operator makes; None where it makes none.

        Args:
            func: the aten operator.
            args: its arguments.
            kwargs: its keyword arguments.
            result: what it returned.
            source: `[*]` float64, what it chooses from.
        """
        own = selection(func, args, kwargs, result)
        if own is None:
            return None
        op = operator_name(func)
        name = f"{op}/{len(self.made)}"
        indices = self._prescribe(name, own.indices)
        if indices is not None and bool(((indices < 0) | (indices >= source.shape[own.dim])).any()):
            indices = None
        choice = Choice(
            name=name,
            op=op,
            source=source,
            own=own,
            indices=own.indices if indices is None else indices,
            is_followed=indices is not None,
        )
        self.made.append(choice)
        return choice


def selection(func: Any, args: Any, kwargs: Any, result: Any) -> Selection | None:
    """Return what `topk`, `sort`, `argmax`, `argmin`, or `max` and `min` along a dim chose, else None.

    Args:
        func: the aten operator.
        args: its arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    name = operator_name(func)
    if name not in _SELECTORS:
        return None
    named = arguments_by_name(func, args, kwargs)
    dim = named.get("dim", -1 if name in ("topk", "sort") else None)
    has_values = isinstance(result, tuple)
    if not isinstance(dim, int) or (name in ("max", "min") and not has_values):
        return None
    indices = result[1] if has_values else result
    return Selection(
        dim=dim,
        indices=indices,
        has_values=has_values,
        is_ordered=name == "sort",
        is_best=name == "topk" and named.get("largest", True),
    )
