"""A module's code as a straight line of calls of torch's operators, from the log of one run of it."""

import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.checks.aten_calls import unflatten_call
from validator.checks.operations import is_floating
from validator.checks.operator_log import BECOME, LoggedCall, OperatorLog, Slot
from validator.reproducing.tensor_file import TYPES

__all__ = ["Program", "program_of"]

RESERVED = frozenset(("args", "device", "given", "math", "run", "torch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Statements that compute one tensor.

    Attributes:
        lines: of Python, which take `given`, tensors by name, and `device`.
        inputs: what they are given, in the dtypes that the candidate has.
        result: name of the variable that holds the tensor at the end.
    """

    lines: tuple[str, ...]
    inputs: Mapping[str, Tensor]
    result: str


def program_of(
    log: OperatorLog, *, slot: int, positions: Sequence[int], starts: Mapping[int, Tensor]
) -> Program:
    """Return the statements that make what a slot holds.

    Args:
        log: of the code.
        slot: of the wanted tensor.
        positions: of the operators that it takes, in order.
        starts: `[*]` float64 by position, results that are given.
    """
    return _Writer(log, starts).program(slot, positions)


class _Writer:
    def __init__(self, log: OperatorLog, starts: Mapping[int, Tensor]) -> None:
        self._log = log
        self._starts = starts
        self._names: dict[int, str] = {}
        self._taken = set(RESERVED)
        self._inputs: dict[str, Tensor] = {}
        self._lines: list[str] = []

    def program(self, slot: int, positions: Sequence[int]) -> Program:
        for position in positions:
            call = self._log.calls[position]
            is_known = position in self._starts and call.main is not None and not call.written
            if not (is_known and call.is_replaceable):
                self._lines.append(self._statement(call))
            if is_known:
                self._start(call, position)
        result = self._name(slot)
        return Program(lines=tuple(self._lines), inputs=self._inputs, result=result)

    def _start(self, call: LoggedCall, position: int) -> None:
        assert call.main is not None
        assert call.dtype is not None
        self._take(call.main, f"{call.name}_{position}", self._starts[position].to(call.dtype))

    def _statement(self, call: LoggedCall) -> str:
        leaves: list[Any] = []
        for leaf in call.leaves:
            leaves.append(_Word(self._name(leaf.number) if isinstance(leaf, Slot) else _literal(leaf)))
        args, kwargs = unflatten_call(leaves, call.form)
        if call.func is BECOME:
            return f"{args[0].text}.copy_({args[1].text})"
        words = [_text(value) for value in args]
        words += [f"{name}={_text(value)}" for name, value in kwargs.items() if _text(value) != "None"]
        statement = f"{_function(call.func)}({', '.join(words)})"
        if call.written and all(x is None or x in self._names for x in call.made):
            return statement
        targets = ["_" if x is None else self._fresh(x, call, i) for i, x in enumerate(call.made)]
        if not targets:
            return statement
        if _is_single(call.func):
            return f"{targets[0]} = {statement}"
        return f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {statement}"

    def _name(self, slot: int) -> str:
        """Return the variable of a slot, which is loaded where it comes from outside."""
        if slot not in self._names:
            given = self._log.given[slot]
            tensor = given.tensor
            if given.dtype is not None:
                tensor = tensor.to(given.dtype)
            elif is_floating(tensor):
                values, dtype = self._log.lift(tensor)
                tensor = values.to(dtype)
            self._take(slot, self._log.names.get(slot, f"constant_{slot}"), tensor)
        return self._names[slot]

    def _take(self, slot: int, name: str, tensor: Tensor) -> None:
        name = self._unused(name)
        stored = tensor if tensor.dtype in TYPES else tensor.to(torch.float64)
        self._inputs[name] = stored.clone()
        self._names[slot] = name
        self._lines.append(f'{name} = given["{name}"]')

    def _fresh(self, slot: int, call: LoggedCall, index: int) -> str:
        if slot not in self._names:
            self._names[slot] = self._unused(call.name.rpartition(".")[2].strip("_") or f"value_{index}")
        return self._names[slot]

    def _unused(self, name: str) -> str:
        name = re.sub(r"\W+", "_", name.replace("[", "_")).strip("_") or "value"
        name = f"x_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
        unused, number = name, 1
        while unused in self._taken:
            number += 1
            unused = f"{name}_{number}"
        self._taken.add(unused)
        return unused


@dataclass(frozen=True, slots=True)
class _Word:
    text: str


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(x) for x in value)}]"
    return value.text if isinstance(value, _Word) else _literal(value)


def _literal(value: Any) -> str:
    """Return a plain argument as Python."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    return "None"


def _function(func: Any) -> str:
    if isinstance(func, torch._ops.OpOverload):
        return f"torch.ops.{func}"
    return f"torch.nn.functional.{func.__name__}"


def _is_single(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload):
        return True
    returns = func._schema.returns
    return len(returns) == 1 and not isinstance(returns[0].type, torch.ListType)


def lines_of(program: Program) -> Iterator[str]:
    """Yield the statements, and what they return."""
    yield from program.lines
    yield f"return {program.result}"
