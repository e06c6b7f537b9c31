"""What ran inside of a call: the candidate's operators, with their results as logical tensors."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from validator.capturing.records import Call, Operator, Origin, TensorRef
from validator.errors import LayoutError
from validator.sharding.placements import place
from validator.sharding.unshard import unshard

__all__ = ["TraceOperator", "TraceResult", "join_operators"]

Reading = Callable[[tuple[int, ...], Collection[int]], torch.Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    """What an operator returned or wrote to.

    Attributes:
        dtype: the torch name without `torch.`, or `""` for what is no tensor.
        shape: of the lowest rank's part (of a DTensor of the whole).
        sizes: numbers of elements that the tensor may have when the ranks' parts are put together.
        read: gives `[*]` the values in a shape, with preference to some ranks' copies; None where the parts
            make up no such tensor. None itself for a view of what went in, and for what was not written yet.
    """

    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    read: Reading | None = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOperator:
    """One operator that the candidate ran directly in a call.

    Attributes:
        name: namespace, name and overload.
        arguments: by the names of its schema, as the lowest rank gave them: `capturing.records.Operator`.
        results: what it returned, and then what it wrote to besides.
    """

    name: str
    arguments: Mapping[str, Any]
    results: tuple[TraceResult, ...]

    @property
    def sources(self) -> tuple[Origin, ...]:
        """Where the tensors that it was given come from."""
        flat = []
        for value in self.arguments.values():
            flat += value if isinstance(value, list) else [value]
        return tuple(value for value in flat if isinstance(value, Origin))


def join_operators(calls: Mapping[int, Call]) -> tuple[TraceOperator, ...]:
    """Return the operators that ran inside of one call on all ranks.

    Args:
        calls: the call on each rank.

    Returns:
        The operators; those of the lowest rank alone where the ranks ran others.
    """
    lowest = min(calls)
    names = [operator.name for operator in calls[lowest].operators]
    alike = {
        rank: call.operators
        for rank, call in calls.items()
        if [operator.name for operator in call.operators] == names
    }
    return tuple(
        TraceOperator(
            name=first.name,
            arguments=first.arguments,
            results=_results({rank: operators[i] for rank, operators in alike.items()}, lowest),
        )
        for i, first in enumerate(calls[lowest].operators)
    )


def _results(operators: Mapping[int, Operator], lowest: int) -> tuple[TraceResult, ...]:
    found = []
    for i, first in enumerate(operators[lowest].results):
        refs = {
            rank: ref
            for rank, operator in operators.items()
            if i < len(operator.results) and (ref := operator.results[i].ref) is not None
        }
        own = prod(first.shape)
        found.append(
            TraceResult(
                dtype=first.dtype,
                shape=first.shape,
                sizes=(own, own * len(operators)) if len(operators) > 1 else (own,),
                read=_reading(refs) if lowest in refs else None,
            )
        )
    return tuple(found)


def _reading(refs: Mapping[int, TensorRef]) -> Reading:
    def read(shape: tuple[int, ...], prefer: Collection[int]) -> torch.Tensor | None:
        metas = {rank: ref.meta for rank, ref in refs.items()}
        try:
            plan = place(metas, shape=shape)
        except LayoutError:
            lowest = min(refs)
            if any(prod(meta.shape) != prod(shape) for meta in metas.values()):
                return None
            # One tensor in two shapes: whether it is one at all, its values tell.
            source = next((rank for rank in prefer if rank in refs), lowest)
            return refs[source].read().reshape(shape)
        return unshard(plan, lambda rank: refs[rank].read(), prefer=prefer)

    return read
