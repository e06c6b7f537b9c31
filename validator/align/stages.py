"""Modules that several pipeline stages run: the first stage's inputs, and the last one's outputs, are theirs.

The modules around the layers, up to the model itself, run on every stage, each with a part of the work: what
a later stage is given, and what an earlier one returns, is a hidden state on its way. So is what a helper
that every stage has for itself, such as rotary tables, is given beside positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from validator.align.calls import enclosing
from validator.align.stacks import Stack, find_stacks
from validator.capturing.records import RankCapture, TensorRef

__all__ = ["join_stages"]

_IDENTITY = "torch.nn.modules.linear.Identity"

_Fired = Mapping[int, frozenset[str]]
"""The reference's names of the modules that each rank called."""


def join_stages(
    *, cand: Sequence[RankCapture], ref: RankCapture, modules: Mapping[str, str]
) -> tuple[RankCapture, ...]:
    """Keep the inputs of shared modules on the ranks of their first stage alone, the outputs on their last's.

    Args:
        cand: every rank's capture, layers numbered as the reference's.
        ref: the reference's.
        modules: the reference's name of each candidate module that both sides have.

    Returns:
        The captures, as they are where every rank runs all layers. Calls of an `nn.Identity` that stands in
        for what another stage has are left out.
    """
    cand = _without_placeholders(cand, modules)
    fired = {
        capture.rank: frozenset(modules[call.module] for call in capture.calls if call.module in modules)
        for capture in cand
    }
    shared: dict[str, _Shared] = {}
    for stack in find_stacks(ref):
        layers = {call.module for call in stack.layers}
        if len({names & layers for names in fired.values()}) > 1:
            shared |= _containers(stack, ref, fired)
            shared |= _helpers(layers | shared.keys(), ref, fired, layers)
    return tuple([_joined(capture, modules, shared) for capture in cand]) if shared else tuple(cand)


def _without_placeholders(cand: Sequence[RankCapture], modules: Mapping[str, str]) -> tuple[RankCapture, ...]:
    is_identity = {
        capture.rank: {modules.get(name): info.type == _IDENTITY for name, info in capture.modules.items()}
        for capture in cand
    }
    real = {name for of_rank in is_identity.values() for name, is_empty in of_rank.items() if not is_empty}
    found = []
    for capture in cand:
        empty = {name for name, is_empty in is_identity[capture.rank].items() if is_empty} & real
        calls = tuple(call for call in capture.calls if modules.get(call.module) not in empty - {None})
        found.append(capture if len(calls) == len(capture.calls) else replace(capture, calls=calls))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Ranks whose inputs, and whose outputs, of a module count. A helper's outputs are copies: all count."""

    first: frozenset[int]
    last: frozenset[int] | None


def _containers(stack: Stack, ref: RankCapture, fired: _Fired) -> dict[str, _Shared]:
    """Return the modules around a stack.

    Of each, the first stage is where the first of what runs inside it runs, the last where the last does.
    What all ranks run says nothing of that.
    """
    by_id = {call.id: call for call in ref.calls}
    common = frozenset.intersection(*fired.values())
    containers = {}
    for container in enclosing(stack.layers[0], by_id):
        inside = [c for c in ref.calls if any(outer.id == container.id for outer in enclosing(c, by_id))]
        own = sorted(
            (c.start, c.module) for c in inside if any(c.module in n - common for n in fired.values())
        )
        (_, first), (_, last) = own[0], own[-1]
        containers[container.module] = _Shared(
            first=frozenset(rank for rank, names in fired.items() if first in names),
            last=frozenset(rank for rank, names in fired.items() if last in names),
        )
    return containers


def _helpers(others: set[str], ref: RankCapture, fired: _Fired, layers: set[str]) -> dict[str, _Shared]:
    """Return the modules, other than these, that ranks of several stages run."""
    position = {call.module: order for order, call in enumerate(ref.calls) if call.module in layers}
    stage = {rank: min((position[n] for n in names & layers), default=-1) for rank, names in fired.items()}
    helpers = {}
    for name in {call.module for call in ref.calls} - others:
        stages = {stage[rank] for rank, names in fired.items() if name in names}
        if len(stages) > 1:
            first = frozenset(
                rank for rank, names in fired.items() if name in names and stage[rank] == min(stages)
            )
            helpers[name] = _Shared(first=first, last=None)
    return helpers


def _joined(capture: RankCapture, modules: Mapping[str, str], shared: Mapping[str, _Shared]) -> RankCapture:
    calls = []
    for call in capture.calls:
        module = shared.get(modules.get(call.module, ""))
        if call.module in modules and module is not None:
            is_last = module.last is None or capture.rank in module.last
            call = replace(
                call,
                inputs=call.inputs if capture.rank in module.first else _positions(call.inputs, module),
                outputs=call.outputs if is_last else {},
            )
        calls.append(call)
    return replace(capture, calls=tuple(calls))


def _positions(inputs: Mapping[str, object], module: _Shared) -> dict[str, object]:
    """Return what a later stage's inputs tell: nothing of a container's, positions of a helper's."""
    if module.last is not None:
        return {}
    return {
        path: value
        for path, value in inputs.items()
        if not isinstance(value, TensorRef) or "float" not in value.meta.dtype
    }
