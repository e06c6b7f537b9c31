"""Calls of micro-batches are put together: what a module did for the whole batch is one call of it.

A pipeline's schedule runs a stage once for each part of the batch; the reference runs it once for all. Where
a module is called `k` times as often, and its tensors, joined along the batch, have the reference's shapes,
these calls are one.

Shape legend: B = sequences of the whole batch, b = of one part, * = the other dims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from validator.align.calls import Children, children_of
from validator.align.derived import concatenated, stacked
from validator.capturing.records import Call, Collective, RankCapture, TensorRef

__all__ = ["join_microbatches"]

_Values = Mapping[str, Any]


def join_microbatches(
    *, cand: Sequence[RankCapture], ref: RankCapture, modules: Mapping[str, str], batch: int | None
) -> tuple[RankCapture, ...]:
    """Join the calls that each rank made for parts of the batch.

    Args:
        cand: every rank's capture, after `join_stages`.
        ref: the reference's.
        modules: the reference's name of each candidate module that both sides have.
        batch: B, or None where it can't be told.

    Returns:
        The captures; those of ranks that call everything as often as the reference, as they are. Calls that
        don't fit together are left for `match_calls` to report.
    """
    theirs = children_of(ref.calls, {name: name for name in modules.values()})
    joined = []
    for capture in cand:
        groups = _groups(children_of(capture.calls, modules), theirs, batch)
        # What all parts have alike may as well be one thing done again: only a split batch tells.
        counts = {len(group.calls) for group in groups if group.is_split}
        groups = [group for group in groups if len(group.calls) == 1 or len(group.calls) in counts]
        joined.append(_joined(capture, groups) if any(len(group.calls) > 1 for group in groups) else capture)
    return tuple(joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Calls of one rank that are one call of the reference.

    Attributes:
        calls: one for each part of the batch, or the only one.
        inputs, outputs: what they were given and returned, as one.
        is_split: whether each of several calls had its own part of some tensor.
    """

    calls: tuple[Call, ...]
    inputs: _Values
    outputs: _Values
    is_split: bool = False


def _groups(ours: Children, theirs: Children, batch: int | None) -> list[_Group]:
    """Walk both trees of calls from the model down, and return the groups that fit together."""
    groups: list[_Group] = []
    stack: list[tuple[int | None, Sequence[int | None]]] = [(None, (None,))]
    while stack:
        outer, parents = stack.pop()
        for name, calls in theirs.get(outer, {}).items():
            for their, parts in zip(calls, _parts(ours, parents, name, len(calls)), strict=False):
                is_loop = len(parents) == 1 and len(parts) > 1
                group = None if is_loop and _has_free_rows(their, batch) else _group(parts, their, batch)
                if group is not None:
                    groups.append(group)
                    stack.append((their.id, [part.id for part in parts]))
    return groups


def _parts(ours: Children, parents: Sequence[int | None], name: str, count: int) -> list[tuple[Call, ...]]:
    """Deal a module's calls inside some parents to the reference's `count` calls of it inside one.

    Each parent, one for each part of the batch, makes all of these calls or none (an expert that no token of
    that part chose). Where there is one parent it makes them part by part.
    """
    of_parents = [found for parent in parents if (found := ours.get(parent, {}).get(name, []))]
    if len(parents) == 1 and of_parents and len(of_parents[0]) % count == 0:
        (found,) = of_parents
        return [tuple(found[i::count]) for i in range(count)]
    if of_parents and all(len(found) == count for found in of_parents):
        return list(zip(*of_parents, strict=True))
    return []


def _has_free_rows(their: Call, batch: int | None) -> bool:
    """Tell whether a call is given rows that are no sequences.

    Code that calls a module on some of them at a time, as that of experts does, may take them in any order.
    """
    given = [value.meta for value in their.inputs.values() if isinstance(value, TensorRef)]
    return any("float" in meta.dtype and len(meta.shape) == 2 and meta.shape[0] != batch for meta in given)


def _group(parts: Sequence[Call], their: Call, batch: int | None) -> _Group | None:
    """Join some calls; None where what they returned doesn't fit together."""
    if len(parts) == 1:
        return _Group(calls=tuple(parts), inputs=parts[0].inputs, outputs=parts[0].outputs)
    inputs = _values([part.inputs for part in parts], their.inputs, batch)
    outputs = _values([part.outputs for part in parts], their.outputs, batch)
    if inputs is None or outputs is None:
        return None
    given = [value for part in parts for value in (*part.inputs.values(), *part.outputs.values())]
    made = (*inputs.values(), *outputs.values())
    is_split = any(isinstance(value, TensorRef) and all(value is not own for own in given) for value in made)
    return _Group(calls=tuple(parts), inputs=inputs, outputs=outputs, is_split=is_split)


def _values(parts: Sequence[_Values], theirs: _Values, batch: int | None) -> _Values | None:
    """Join values path by path; None where tensors that the reference has don't fit together."""
    joined: dict[str, Any] = {}
    for path in dict.fromkeys(path for part in parts for path in part):
        values = [part[path] for part in parts if path in part]
        tensors = [value for value in values if isinstance(value, TensorRef)]
        if not tensors:
            joined[path] = values[0]
            continue
        their = theirs.get(path)
        shape = their.meta.shape if isinstance(their, TensorRef) else None
        whole = _whole(tensors, shape, batch) if len(tensors) == len(parts) else None
        if whole is not None:
            joined[path] = whole
        elif shape is not None:
            return None
    return joined


def _whole(parts: Sequence[TensorRef], shape: tuple[int, ...] | None, batch: int | None) -> TensorRef | None:
    """Return the tensor of the whole batch; None where the parts don't make one up.

    Args:
        parts: `[b, *]`, or what all parts have alike.
        shape: of the reference's tensor, or None where it has none at this place.
        batch: B, or None where it can't be told.
    """
    shapes = [part.meta.shape for part in parts]
    if shape in (None, shapes[0]) and len({part.meta.checksum for part in parts}) == 1:
        return parts[0]
    dim = _dim(shapes, shape, batch)
    return None if dim is None else _along(parts, dim)


def _dim(shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...] | None, batch: int | None) -> int | None:
    """Return the dim along which the parts of a batch follow one another, or None.

    It is the first, or the second where tokens come first. Data-parallel ranks have a share of the batch.
    """
    sizes = [batch] if shape is None else [batch, shape[0]] if shape else []
    for dim in range(min(2, len(shapes[0]))):
        total = sum(s[dim] for s in shapes)
        is_alike = len({(*s[:dim], *s[dim + 1 :]) for s in shapes}) == 1
        wanted = sizes if dim == 0 else [batch]
        if is_alike and total and any(size and size % total == 0 for size in wanted):
            return dim
    return None


def _along(parts: Sequence[TensorRef], dim: int) -> TensorRef:
    """Return parts one after the other; where they are DTensors, as one that lies on the mesh as they do."""
    whole = concatenated(parts, dim=dim)
    first = parts[0].meta
    if first.global_shape is None or any(part.meta.placements != first.placements for part in parts):
        return whole
    size = sum(part.meta.global_shape[dim] for part in parts if part.meta.global_shape is not None)
    shape = (*first.global_shape[:dim], size, *first.global_shape[dim + 1 :])
    meta = replace(whole.meta, placements=first.placements, mesh=first.mesh, global_shape=shape)
    return replace(whole, meta=meta)


def _joined(capture: RankCapture, groups: Sequence[_Group]) -> RankCapture:
    """Put one call in place of each group, and one collective in place of those that its calls did."""
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
        calls.append(replace(call, parent=parent))
    of_call: dict[int | None, list[Collective]] = {}
    for collective in sorted(capture.collectives, key=lambda c: c.start):
        of_call.setdefault(collective.call, []).append(collective)
    collectives = [c for id_, found in of_call.items() if id_ not in ids for c in found]
    for group in groups:
        collectives += _joined_collectives([of_call.get(part.id, []) for part in group.calls])
    return replace(capture, calls=tuple(calls), collectives=tuple(collectives))


def _joined_collectives(parts: Sequence[Sequence[Collective]]) -> list[Collective]:
    """Join what each part's calls exchanged, in order; nothing where they did not do the same."""
    if len(parts) == 1:
        return list(parts[0])
    kinds = {tuple((c.op, c.reduce, c.ranks, len(c.entered), len(c.left)) for c in part) for part in parts}
    if len(kinds) > 1:
        return []
    return [
        replace(same[0], entered=_tensors([c.entered for c in same]), left=_tensors([c.left for c in same]))
        for same in zip(*parts, strict=True)
    ]


def _tensors(parts: Sequence[tuple[TensorRef, ...]]) -> tuple[TensorRef, ...]:
    return tuple(
        _along(same, 0) if same[0].meta.shape else stacked(same) for same in zip(*parts, strict=True)
    )
