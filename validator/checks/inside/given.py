"""What the candidate's operators were given, as far as it was recorded or follows from what was.

Views have no values of their own: they are made again from what they are views of.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from validator.align.inside import TraceOperator
from validator.capturing.records import Origin, OriginKind

__all__ = ["GivenValues"]

_RESHAPES = ("view", "_unsafe_view", "_reshape_alias", "reshape")


class GivenValues:
    """Finds the values of arguments. Of runs on several ranks little is known here: see `argument`.

    Args:
        operators: the candidate's, of one call.
    """

    def __init__(self, operators: Sequence[TraceOperator]) -> None:
        self._operators = operators

    def arguments(self, position: int) -> dict[str, Any] | None:
        """Return what an operator was given by the names of its schema; None where a tensor is not known."""
        found = {}
        for name, value in self._operators[position].arguments.items():
            values = [self.argument(x) for x in value] if isinstance(value, list) else [self.argument(value)]
            if any(x is None for x, y in zip(values, _listed(value), strict=True) if isinstance(y, Origin)):
                return None
            found[name] = values if isinstance(value, list) else values[0]
        return found

    def argument(self, value: Any) -> Any:
        """Return an argument as the lowest rank gave it; None for a tensor whose values are not known."""
        if not isinstance(value, Origin):
            return value
        if value.kind is not OriginKind.OPERATOR:
            return None if value.ref is None else value.ref.read()
        operator = self._operators[value.operator]
        if value.result >= len(operator.results):
            return None
        result = operator.results[value.result]
        if result.read is not None:
            return result.read(result.shape, ())
        return self._view(value.operator, value.result)

    def _view(self, position: int, index: int) -> Tensor | None:
        """Make a view again; None for what is none, or can't be made of a copy."""
        func, arguments = _view_operator(self._operators[position].name), self.arguments(position)
        if func is None or arguments is None:
            return None
        name = func._schema.name.split("::")[1]
        try:
            if name in _RESHAPES and "size" in arguments:
                made = arguments["self"].reshape(arguments["size"])
            else:
                made = func(**arguments)
        except (RuntimeError, ValueError, IndexError, TypeError):  # a copy may lie otherwise in memory
            return None
        views = list(made) if isinstance(made, list | tuple) else [made]
        return views[index] if index < len(views) else None


def _view_operator(name: str) -> Any:
    """Return aten's view operator of a recorded name, or None for any other: nothing else is run."""
    space, _, rest = name.partition(".")
    bare, _, overload = rest.partition(".")
    packet = getattr(torch.ops.aten, bare, None) if space == "aten" else None
    func = getattr(packet, overload, None)
    if not isinstance(func, torch._ops.OpOverload):
        return None
    return func if func.is_view or bare in _RESHAPES else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
