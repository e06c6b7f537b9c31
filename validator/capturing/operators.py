"""Operators that run inside chosen modules, seen by a dispatch mode.

An operator belongs to the innermost recorded call: what a captured child runs is the child's own, what a
module runs that is not recorded is its caller's. Fused and foreign kernels are one operator, as torch
dispatches them. Operators on DTensors are recorded as such, not as what they come to on each rank.

Where a tensor comes from is known by its identity, so a tensor that was made where torch does not look (a
raw kernel launch, a `.data` alias) is a constant, which is stored.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from .hooks import OpenCall, Recorder
from .schema import module_path
from .selection import Selection
from .values import escape_part
from .writer import CaptureWriter

__all__ = ["OperatorRecorder"]

_UNWRITTEN = frozenset(
    (
        "_reshape_alias",
        "_unsafe_view",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)
"""Operators whose results hold nothing yet, or what their input holds, although they are called no views."""


@dataclass(slots=True)
class _Inside:
    """What is known of one call's operators.

    Attributes:
        origins: where tensors come from, by identity.
        counts: how many operators there were of each name.
        made: how many operators there were.
    """

    origins: Any = field(default_factory=WeakIdKeyDictionary)
    counts: Counter[str] = field(default_factory=Counter)
    made: int = 0


class OperatorRecorder(TorchDispatchMode):
    """Records the operators of chosen modules while it is entered.

    Args:
        model: its parameters and buffers are known by name.
        recorder: knows the module call that is running, and the sequence of events.
        writer: where records go.
        selection: which modules are looked into.
    """

    def __init__(
        self, model: nn.Module, recorder: Recorder, writer: CaptureWriter, selection: Selection
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._writer = writer
        self._selection = selection
        self._count = 0
        self._inside: dict[int, _Inside] = {}
        named = (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        self._parameters: Any = WeakIdKeyDictionary()
        for name, tensor in named:
            self._parameters.setdefault(tensor, name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and record it if it belongs to a chosen module."""
        kwargs = kwargs or {}
        call = self._recorder.enclosing()
        inside = None if call is None or call.id is None else self._inside.get(call.id)
        is_looked_at = inside is not None and not self._recorder.is_copying
        if call is None or inside is None or not is_looked_at or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        name = str(func)
        path = f"{module_path(call.fqn)}/operators/{escape_part(name)}.{inside.counts[name]}"
        inside.counts[name] += 1
        row, start = self._count, self._recorder.next_event()
        arguments = _by_name(func, args, kwargs)
        described = {
            key: self._describe(inside, value, f"{path}/given/{escape_part(key)}", row)
            for key, value in arguments.items()
        }
        result = func(*args, **kwargs)
        outputs = [
            self._keep(func, inside, value, i, f"{path}/{i}", row)
            for i, value in enumerate(_results(func, arguments, result))
        ]
        inside.made += 1
        self._writer.append(
            "operators", call.id, start, name, path, json.dumps(described), json.dumps(outputs)
        )
        self._count += 1  # an operator that raises has no row
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps the method above, and imports its compiler (seconds) at the first operator.
        return False

    def entered(self, call: OpenCall, leaves: Mapping[str, Any]) -> None:
        """Look into a recorded call that has begun, if its module is chosen.

        Args:
            call: which.
            leaves: what it was given, by path.
        """
        if call.id is None or not self._selection.keeps_operators(call.fqn):
            return
        inside = self._inside[call.id] = _Inside()
        for path, leaf in leaves.items():
            if isinstance(leaf, torch.Tensor):
                inside.origins[leaf] = {"input": path}

    def returned(self, call: OpenCall, caller: OpenCall | None, leaves: Mapping[str, Any]) -> None:
        """Take note of what a recorded call gives to the one that encloses it.

        Args:
            call: which; it is looked into no more.
            caller: the recorded call that encloses it, or None.
            leaves: what it returned, by path.
        """
        if call.id is None:
            return
        self._inside.pop(call.id, None)
        inside = None if caller is None or caller.id is None else self._inside.get(caller.id)
        if inside is None:
            return
        for path, leaf in leaves.items():
            if isinstance(leaf, torch.Tensor):
                inside.origins[leaf] = {"child": [call.id, path]}

    def _describe(self, inside: _Inside, value: Any, path: str, row: int) -> Any:
        """Return an argument as JSON; a tensor that comes from nowhere is stored at `path`."""
        if isinstance(value, list | tuple):
            return [self._describe(inside, x, f"{path}/{i}", row) for i, x in enumerate(value)]
        if isinstance(value, torch.Tensor):
            origin = inside.origins.get(value)
            if origin is None and value in self._parameters:
                origin = {"parameter": self._parameters[value]}
            if origin is not None:
                return origin
            return {"constant": path if self._recorder.put(path, row, value) else None}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return {"other": str(value)}

    def _keep(self, func: Any, inside: _Inside, value: Any, index: int, path: str, row: int) -> Any:
        """Store a result, and return what is said of it as JSON."""
        if not isinstance(value, torch.Tensor):
            return {"plain": value if isinstance(value, bool | int | float | str) else None}
        inside.origins[value] = {"operator": [inside.made, index]}
        is_stored = not func.is_view and _bare_name(func) not in _UNWRITTEN
        return {
            "tensor": is_stored and self._recorder.put(path, row, value),
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
        }


def _by_name(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(_names(func), args, strict=False)) | dict(kwargs)


def _results(func: Any, arguments: Mapping[str, Any], result: Any) -> Iterator[Any]:
    """Yield what an operator returned, and then what it wrote to besides."""
    returned = result if isinstance(result, list | tuple) else [] if result is None else [result]
    yield from returned
    seen = {id(x) for x in returned}
    for name in _written(func):
        value = arguments.get(name)
        for x in value if isinstance(value, list | tuple) else [value]:
            if isinstance(x, torch.Tensor) and id(x) not in seen:
                yield x


@cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


@cache
def _written(func: Any) -> tuple[str, ...]:
    arguments = func._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


def _bare_name(func: Any) -> str:
    return str(func._schema.name).split("::")[1]
