"""Mixtures of experts in a model: which modules score experts, which hold their weights, and of how many.

Shape legend: T = tokens, k = experts of a token, E = experts, D = channels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from validator.capturing.records import RankCapture, TensorMeta, TensorRef

__all__ = ["Mixtures", "choices", "find_mixtures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtures:
    """How many experts there are, by the fqn of a module.

    Attributes:
        routers: modules that return a score of each expert, `[T, E]`.
        stacks: modules that hold the weights of all experts, `[E, ...]`.
    """

    routers: Mapping[str, int]
    stacks: Mapping[str, int]

    def of_parameter(self, name: str) -> int | None:
        """Return how many experts the module of a parameter is of, or None."""
        owner = name.rpartition(".")[0]
        return self.stacks.get(owner, self.routers.get(owner))


def find_mixtures(ref: RankCapture) -> Mixtures:
    """Look for routers and for stacks of experts.

    A router's class is called so, or it lies in one; it has a matrix `[E, D]` and returns as many columns.
    A class of experts is called so, or is given the choice of each token; all of its parameters of three dims
    are of one length.

    Args:
        ref: the reference's capture, on one rank.
    """
    owned: dict[str, list[tuple[int, ...]]] = {}
    for name, parameter in ref.parameters.items():
        owned.setdefault(name.rpartition(".")[0], []).append(parameter.ref.meta.shape)
    routers: dict[str, int] = {}
    stacks: dict[str, int] = {}
    for call in ref.calls:
        module = call.module
        info = ref.modules.get(module)
        kind = info.type.rpartition(".")[2] if info else ""
        if "Router" in kind or any(module.startswith(f"{router}.") for router in routers):
            inside = [shapes for owner, shapes in owned.items() if f"{owner}.".startswith(f"{module}.")]
            rows = {shape[0] for shapes in inside for shape in shapes if len(shape) == 2}
            scores = rows & {meta.shape[-1] for meta in _metas(call.outputs) if meta.shape}
            if scores:
                routers[module] = max(scores)
        lengths = {shape[0] for shape in owned.get(module, ()) if len(shape) == 3}
        if len(lengths) == 1 and ("Expert" in kind or choices(call.inputs)):
            stacks[module] = lengths.pop()
    return Mixtures(routers=routers, stacks=stacks)


def choices(*sides: Mapping[str, Any]) -> frozenset[tuple[int, ...]]:
    """Return the shapes of what may be the choice of each token, `[T, k]`: of integers of two dims or more.

    Args:
        sides: inputs or outputs of calls.
    """
    metas = (meta for side in sides for meta in _metas(side))
    return frozenset(meta.shape for meta in metas if "int" in meta.dtype and len(meta.shape) > 1)


def _metas(values: Mapping[str, Any]) -> Iterable[TensorMeta]:
    return (value.meta for value in values.values() if isinstance(value, TensorRef))
