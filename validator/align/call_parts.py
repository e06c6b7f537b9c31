"""Calls that are parts of one call, along the batch or along tokens, are put in one's place.

What the parts were given and returned is joined by whoever finds them (`microbatches`, `step_joins`); here
the tree of calls, the collectives inside and the operators follow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from validator.align.derived import concatenated
from validator.align.operator_joins import join_operators_of_parts
from validator.capturing.records import Call, Collective, RankCapture, TensorRef

__all__ = ["CallParts", "along", "with_parts_joined"]

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParts:
    """Calls of one rank that are one call of the reference.

    Attributes:
        calls: one for each part, or the only one.
        inputs, outputs: what they were given and returned, as one.
        is_split: whether each of several calls had its own part of some tensor.
    """

    calls: tuple[Call, ...]
    inputs: Values
    outputs: Values
    is_split: bool = False


_Join = Callable[[CallParts, Sequence[TensorRef]], TensorRef | None]
"""Makes one tensor of a group's, one a part; None where they don't fit together."""


def along(parts: Sequence[TensorRef], dim: int) -> TensorRef:
    """Return parts one after the other; where they are DTensors, as one that lies on the mesh as they do."""
    whole = concatenated(parts, dim=dim)
    first = parts[0].meta
    if first.global_shape is None or any(part.meta.placements != first.placements for part in parts):
        return whole
    size = sum(part.meta.global_shape[dim] for part in parts if part.meta.global_shape is not None)
    shape = (*first.global_shape[:dim], size, *first.global_shape[dim + 1 :])
    meta = replace(whole.meta, placements=first.placements, mesh=first.mesh, global_shape=shape)
    return replace(whole, meta=meta)


def with_parts_joined(
    capture: RankCapture,
    groups: Sequence[CallParts],
    join: _Join,
    *,
    joins_operators: bool = False,
) -> RankCapture:
    """Put one call in place of each group, and one collective in place of those that its calls did.

    Args:
        capture: of one rank.
        groups: the groups; no call is in two of them.
        join: makes one of the tensors, one a part, that went into or out of the same collective of each part;
            None where they don't fit together.
        joins_operators: whether it also makes one of what the same operator of each part made; else those of
            several parts are left out.

    Returns:
        The capture. The first call of each group stands for all; collectives that don't fit are left out.
    """
    ids = {part.id: group.calls[0].id for group in groups for part in group.calls}
    wholes = {group.calls[0].id: group for group in groups}
    calls = []
    for call in capture.calls:
        if ids.get(call.id, call.id) != call.id:
            continue
        parent = None if call.parent is None else ids.get(call.parent, call.parent)
        whole = wholes.get(call.id)
        if whole is not None:
            end = whole.calls[-1].end
            call = replace(call, inputs=dict(whole.inputs), outputs=dict(whole.outputs), end=end)
            if len(whole.calls) > 1:
                parts = [part.operators for part in whole.calls]
                made = join_operators_of_parts(parts, partial(join, whole)) if joins_operators else ()
                call = replace(call, operators=made)
        calls.append(replace(call, parent=parent))
    of_call: dict[int | None, list[Collective]] = {}
    for collective in sorted(capture.collectives, key=lambda c: c.start):
        of_call.setdefault(collective.call, []).append(collective)
    collectives = [c for id_, found in of_call.items() if id_ not in ids for c in found]
    for group in groups:
        collectives += _joined([of_call.get(part.id, []) for part in group.calls], group, join)
    return replace(capture, calls=tuple(calls), collectives=tuple(collectives))


def _joined(parts: Sequence[Sequence[Collective]], group: CallParts, join: _Join) -> list[Collective]:
    """Join what each part's calls exchanged, in order; nothing where they did not do the same."""
    if len(parts) == 1:
        return list(parts[0])
    kinds = {tuple((c.op, c.reduce, c.ranks, len(c.entered), len(c.left)) for c in part) for part in parts}
    if len(kinds) > 1:
        return []
    joined = []
    for same in zip(*parts, strict=True):
        entered = [join(group, tensors) for tensors in zip(*(c.entered for c in same), strict=True)]
        left = [join(group, tensors) for tensors in zip(*(c.left for c in same), strict=True)]
        known = [[tensor for tensor in side if tensor is not None] for side in (entered, left)]
        if len(known[0]) == len(entered) and len(known[1]) == len(left):
            joined.append(replace(same[0], entered=tuple(known[0]), left=tuple(known[1])))
    return joined
