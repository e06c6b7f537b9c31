"""Where the elements of a finding lie, as short English."""

from collections.abc import Mapping, Sequence
from typing import Any

from validator.digits import index_list

__all__ = ["places"]

_LISTED = 4
"""Of what is no number, so many are listed."""


def places(where: Mapping[str, Any]) -> str:
    """Return `channel 40; tokens 3-6, 9`: where the elements of a finding lie."""
    return "; ".join(_place(kind, value) for kind, value in where.items() if value not in (None, [], ()))


def _place(kind: str, value: Any) -> str:
    name = kind.replace("_", " ")
    if not isinstance(value, Sequence) or isinstance(value, str):
        return f"{name} {_value(value)}"
    if all(isinstance(item, int) for item in value):
        return f"{name.removesuffix('s') if len(value) == 1 else name} {index_list(value)}"
    left = len(value) - _LISTED
    shown = ", ".join(_value(item) for item in value[:_LISTED])
    return f"{name} {shown}" + (f" and {left} more" if left > 0 else "")


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
