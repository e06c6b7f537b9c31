"""Calls of micro-batches are put together: what a module did for the whole batch is one call of it.

A pipeline's schedule runs a stage once for each part of the batch; the reference runs it once for all. Where
a module is called `k` times as often, and its tensors, joined along the batch, have the reference's shapes,
these calls are one.

Shape legend: B = sequences of the whole batch, b = of one part, * = the other dims.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from validator.align.call_parts import CallParts, along, with_parts_joined
from validator.align.calls import Children, children_of
from validator.align.derived import stacked
from validator.capturing.records import Call, RankCapture, TensorRef

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
        is_split = any(len(group.calls) > 1 for group in groups)
        joined.append(with_parts_joined(capture, groups, _exchanged) if is_split else capture)
    return tuple(joined)


def _groups(ours: Children, theirs: Children, batch: int | None) -> list[CallParts]:
    """Walk both trees of calls from the model down, and return the groups that fit together."""
    groups: list[CallParts] = []
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


def _group(parts: Sequence[Call], their: Call, batch: int | None) -> CallParts | None:
    """Join some calls; None where what they returned doesn't fit together."""
    if len(parts) == 1:
        return CallParts(calls=tuple(parts), inputs=parts[0].inputs, outputs=parts[0].outputs)
    inputs = _values([part.inputs for part in parts], their.inputs, batch)
    outputs = _values([part.outputs for part in parts], their.outputs, batch)
    if inputs is None or outputs is None:
        return None
    given = [value for part in parts for value in (*part.inputs.values(), *part.outputs.values())]
    made = (*inputs.values(), *outputs.values())
    is_split = any(isinstance(value, TensorRef) and all(value is not own for own in given) for value in made)
    return CallParts(calls=tuple(parts), inputs=inputs, outputs=outputs, is_split=is_split)


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
    return None if dim is None else along(parts, dim)


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


def _exchanged(_: CallParts, tensors: Sequence[TensorRef]) -> TensorRef:
    """Join what each part gave to, or had of, the same collective."""
    return along(tensors, 0) if tensors[0].meta.shape else stacked(tensors)
