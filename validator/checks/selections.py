"""Operators that choose by value: which arguments say what they chose."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from validator.checks.operators import operator_name

__all__ = ["Selection", "selection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What an operator chose.

    Attributes:
        dim: along which it chose.
        indices: `[*]` int64.
        has_values: whether it returns the values beside the indices.
        is_ordered: whether the order of what was chosen counts.
    """

    dim: int
    indices: Tensor
    has_values: bool
    is_ordered: bool


def selection(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Selection | None:
    """Return what `topk`, `sort`, `argmax`, `argmin`, or `max` and `min` along a dim chose, else None.

    Args:
        func: the aten operator.
        args: its arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    name = operator_name(func)
    if name not in ("topk", "sort", "argmax", "argmin", "max", "min"):
        return None
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    dim = named.get("dim", -1 if name in ("topk", "sort") else None)
    has_values = isinstance(result, tuple)
    if not isinstance(dim, int) or (name in ("max", "min") and not has_values):
        return None
    indices = result[1] if has_values else result
    return Selection(dim=dim, indices=indices, has_values=has_values, is_ordered=name == "sort")
