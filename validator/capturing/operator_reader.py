"""The operators of a rank's calls, read back from its file."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .records import Call, Operator, OperatorResult, Origin, OriginKind, Parameter, TensorRef

__all__ = ["read_operators"]

_MAX_DIMS = 64


def read_operators(
    rows: np.ndarray,
    *,
    calls: Sequence[Call],
    parameters: Mapping[str, Parameter],
    ref: Callable[[str, int], TensorRef | None],
) -> dict[int, tuple[Operator, ...]]:
    """Return the operators of each call that was looked into, by the call's id.

    Args:
        rows: of the table `operators`.
        calls: all calls of the rank.
        parameters: its parameters and buffers.
        ref: gives the stored tensor of an edge and a row, or None.

    Raises:
        ValueError: a row refers to what is not there. So do `KeyError` and `TypeError`.
    """
    found: dict[int, list[Operator]] = {}
    for number, row in enumerate(rows):
        call, path = int(row["call"]), _text(row["path"])
        if not 0 <= call < len(calls):
            continue  # The call's own row came after the last flush.
        before = found.setdefault(call, [])
        reader = _Row(calls[call], calls, parameters, ref, number, len(before))
        before.append(
            Operator(
                name=_text(row["name"]),
                start=int(row["start"]),
                arguments={
                    str(name): reader.argument(value)
                    for name, value in json.loads(_text(row["arguments"])).items()
                },
                results=tuple(
                    reader.result(value, f"{path}/{i}")
                    for i, value in enumerate(json.loads(_text(row["outputs"])))
                ),
            )
        )
    return {call: tuple(operators) for call, operators in found.items()}


class _Row:
    def __init__(
        self,
        call: Call,
        calls: Sequence[Call],
        parameters: Mapping[str, Parameter],
        ref: Callable[[str, int], TensorRef | None],
        number: int,
        place: int,
    ) -> None:
        self._call, self._calls, self._parameters = call, calls, parameters
        self._ref, self._number, self._place = ref, number, place

    def argument(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.argument(x) for x in value]
        if not isinstance(value, dict):
            return value
        ((kind, what),) = value.items()
        match kind:
            case "float":
                return float(what)
            case "other":
                return str(what)
            case "operator":
                operator, result = (_index(x) for x in what)
                if operator >= self._place:
                    raise ValueError(f"operator {self._place} is given what operator {operator} returns")
                return Origin(kind=OriginKind.OPERATOR, operator=operator, result=result)
            case "input":
                return self._origin(OriginKind.INPUT, str(what), self._call.inputs.get(what))
            case "child":
                child, path = self._calls[_index(what[0])], str(what[1])
                return self._origin(OriginKind.CHILD, path, child.outputs.get(path))
            case "parameter":
                parameter = self._parameters.get(what)
                of = parameter.ref if parameter is not None and parameter.row_hashes is None else None
                return self._origin(OriginKind.PARAMETER, str(what), of)
            case "constant":
                of = None if what is None else self._ref(str(what), self._number)
                return self._origin(OriginKind.CONSTANT, "", of)
        raise ValueError(f"{kind!r} is no origin of a tensor")

    def result(self, value: Any, path: str) -> OperatorResult:
        if "plain" in value:
            return OperatorResult(dtype="", shape=())
        shape = value["shape"]
        if len(shape) > _MAX_DIMS:
            raise ValueError(f"a shape of {len(shape)} dims")
        return OperatorResult(
            dtype=str(value["dtype"]),
            shape=tuple(_index(size) for size in shape),
            ref=self._ref(path, self._number) if value["tensor"] else None,
        )

    @staticmethod
    def _origin(kind: OriginKind, name: str, ref: Any) -> Origin:
        return Origin(kind=kind, name=name, ref=ref if isinstance(ref, TensorRef) else None)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _index(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no row of a table")
    return value
