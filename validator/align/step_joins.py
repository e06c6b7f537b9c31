"""What a module did in each step of a generation, put end to end along its tokens, is one call of it.

Which dim holds the tokens is told by their number, which is another in a prefill than in a decode step. Where
it leaves several open, it is the one that is as long in the reference's prefill as all steps together.

Shape legend: B = sequences, s = tokens of a step, S = of all, t = tokens so far, h = heads, D = channels.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from validator.align.call_parts import CallParts, Values, along, with_parts_joined
from validator.align.calls import children_of
from validator.align.derived import derived
from validator.align.edges import is_mask
from validator.align.steps import Generation, Step
from validator.capturing.records import Call, RankCapture, TensorRef

__all__ = ["join_steps"]


def join_steps(
    cand: Sequence[RankCapture], *, generations: Sequence[Generation], ref: RankCapture
) -> tuple[RankCapture, ...]:
    """Join the calls that each rank made in the steps of each generation.

    Args:
        cand: every rank's capture.
        generations: of the candidate.
        ref: the reference's capture, on one prefill a generation.

    Returns:
        The captures, in which each generation is one call of the model. What doesn't fit together is left as
        the last step had it, for `build_trace` to report.
    """
    return tuple([_joined(capture, generations, ref) for capture in cand])


def _joined(capture: RankCapture, generations: Sequence[Generation], ref: RankCapture) -> RankCapture:
    children = children_of(capture.calls, {name: name for name in capture.modules})
    roots = [call for call in ref.calls if call.parent is None and not call.module]
    groups: list[CallParts] = []
    places: dict[int, _Places] = {}
    for i, generation in enumerate(generations):
        if len(generation.steps) == 1:
            continue
        theirs = _inside(ref, roots[i]) if i < len(roots) else {}
        steps = generation.steps
        stack = [(tuple((step, step.calls[capture.rank]) for step in steps), 0)]
        while stack:
            parts, k = stack.pop()
            own = _Places(steps=[step for step, _ in parts], batch=generation.batches.get(capture.rank, 1))
            calls = tuple(call for _, call in parts)
            like = theirs.get(calls[0].module, [])
            groups.append(_group(calls, own, like[k] if k < len(like) else None))
            places[calls[0].id] = own
            for same in _dealt(parts, children):
                stack += [(tuple(pair), number) for number, pair in enumerate(same)]

    def join(group: CallParts, tensors: Sequence[TensorRef]) -> TensorRef | None:
        return places[group.calls[0].id].join(tensors, None)

    return with_parts_joined(capture, groups, join, joins_operators=True) if groups else capture


_Part = tuple[Step, Call]


def _dealt(
    parts: Sequence[_Part], children: Mapping[int | None, Mapping[str, Sequence[Call]]]
) -> list[list[list[_Part]]]:
    """Return, for each module that parts of a call made calls of, its calls: one list a call, a part a step.

    A step may leave a module out (an expert that none of its tokens chose). A module that steps call another
    number of times is left as it is.
    """
    found = []
    for module in dict.fromkeys(name for _, call in parts for name in children.get(call.id, {})):
        made = [(step, children.get(call.id, {}).get(module, ())) for step, call in parts]
        counts = {len(calls) for _, calls in made if calls}
        if len(counts) == 1:
            (count,) = counts
            found.append([[(step, calls[k]) for step, calls in made if calls] for k in range(count)])
    return found


def _inside(ref: RankCapture, root: Call) -> dict[str, list[Call]]:
    """Return the calls inside of one call of the model, by module, in order."""
    known = {root.id}
    found: dict[str, list[Call]] = {"": [root]}
    for call in sorted(ref.calls, key=lambda call: call.start):
        if call.parent in known:
            known.add(call.id)
            found.setdefault(call.module, []).append(call)
    return found


def _group(calls: tuple[Call, ...], places: "_Places", like: Call | None) -> CallParts:
    if len(calls) == 1:
        return CallParts(calls=calls, inputs=calls[0].inputs, outputs=calls[0].outputs)
    inputs = _values([call.inputs for call in calls], places, None if like is None else like.inputs)
    outputs = _values([call.outputs for call in calls], places, None if like is None else like.outputs)
    return CallParts(calls=calls, inputs=inputs, outputs=outputs)


def _values(parts: Sequence[Values], places: "_Places", like: Values | None) -> dict[str, Any]:
    """Join values path by path.

    Left out are masks, which each kernel has its own way with (but the model's own, which is the last
    step's), what a cache hands over: tensors of earlier tokens, which the first step lacks, and what no rule
    says anything of: a count of a step's tokens, a loss.
    """
    joined: dict[str, Any] = {}
    for path in dict.fromkeys(path for part in parts for path in part):
        values = [part[path] for part in parts if path in part]
        tensors = [value for value in values if isinstance(value, TensorRef)]
        if not tensors:
            joined[path] = values[0]
            continue
        their = None if like is None else like.get(path)
        shape = their.meta.shape if isinstance(their, TensorRef) else None
        if is_mask(path):
            if tensors[-1].meta.shape == shape:
                joined[path] = tensors[-1]
        elif len(tensors) == len(parts):
            if shape is not None or not places.are_past(tensors):
                whole = places.join(tensors, shape)
                # What is of another shape than the reference's is said to be; what is not would be compared.
                if whole is not None or tensors[-1].meta.shape != shape:
                    joined[path] = whole or tensors[-1]
        elif isinstance(parts[0].get(path), TensorRef):
            joined[path] = tensors[0]
    return joined


class _Places:
    """Where the tokens of some steps are in tensors.

    Args:
        steps: those that made the calls which are joined.
        batch: B, on this rank.
    """

    def __init__(self, steps: Sequence[Step], batch: int) -> None:
        self._counts = [[step.tokens for step in steps], [len(step.kept) for step in steps]]
        self._stops = [step.stop for step in steps]
        self._batch = batch

    def join(self, parts: Sequence[TensorRef], shape: tuple[int, ...] | None) -> TensorRef | None:
        """Return the tensor of all steps; None where the parts don't make one up.

        Args:
            parts: one a step.
            shape: of the reference's tensor, or None where it has none at this place.
        """
        shapes = [part.meta.shape for part in parts]
        if len({len(s) for s in shapes}) != 1 or len({part.meta.dtype for part in parts}) != 1:
            return None
        if shape is not None and self._are_scores(shapes, shape):
            return _scores(parts, shape)
        for counts in self._counts:
            dims = [d for d in range(len(shapes[0])) if _is_along(shapes, d, counts)]
            if (dim := _chosen(dims, shapes[0], shape, sum(counts), self._batch)) is not None:
                return along(parts, dim)
        if shape is not None and shape == self._with_kept(shapes[0]):
            return _kept_rows(parts, shape)
        for counts in self._counts:
            rows = [self._batch * count for count in counts]
            dims = [d for d in range(len(shapes[0])) if _is_along(shapes, d, rows)]
            if (dim := _chosen(dims, shapes[0], shape, sum(rows), self._batch)) is not None:
                return _rows(parts, dim, self._batch)
        if len({part.meta.checksum for part in parts}) == 1 and shape in (None, shapes[0]):
            return parts[0]
        if shape is not None and len(shape) > 1 and shape == shapes[-1] and shape[0] == self._batch:
            return parts[-1]  # of the last position, or a state: one prefill ends with the same
        return _freely(parts, shapes, shape)

    def _with_kept(self, own: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return `[B, K, *]` of `[B, *]`, where each step kept one position; else None."""
        if own[:1] != (self._batch,) or len(own) < 2 or set(self._counts[1]) != {1}:
            return None
        return (own[0], len(self._counts[1]), *own[1:])

    def are_past(self, parts: Sequence[TensorRef]) -> bool:
        """Tell whether tensors grow with the tokens so far, and are no part of what a step adds."""
        shapes = [part.meta.shape for part in parts]
        grown = [list(self._stops), [0, *self._stops[:-1]]]
        return any([s[d] for s in shapes] in grown for d in range(1, min(map(len, shapes))))

    def _are_scores(self, shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> bool:
        """Tell whether tensors are `[*, s, t]`, of all keys so far, and the reference's `[*, S, S]`."""
        if len(shapes[0]) < 3 or shape[-2:] != (sum(self._counts[0]),) * 2:
            return False
        pairs = zip(shapes, self._counts[0], self._stops, strict=True)
        return all(s[-2] == count and s[-1] >= stop for s, count, stop in pairs)


def _freely(
    parts: Sequence[TensorRef], shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...] | None
) -> TensorRef | None:
    """Join parts along the only dim along which they differ in size, such as the rows that an expert gets.

    Where they are all of one size, it is the only dim along which the reference's has their sum.
    """
    own = shapes[0]
    dims = [d for d in range(len(own)) if len({s[d] for s in shapes}) > 1] or list(range(len(own)))
    if shape is not None:
        dims = [d for d in dims if shape == (*own[:d], sum(s[d] for s in shapes), *own[d + 1 :])]
    is_free = len(dims) == 1 and _is_along(shapes, dims[0], [s[dims[0]] for s in shapes])
    return along(parts, dims[0]) if is_free else None


def _kept_rows(parts: Sequence[TensorRef], shape: tuple[int, ...]) -> TensorRef:
    """Return `[B, K, *]` of `[B, *]`, a position each."""
    return derived(shape, parts[0].meta.dtype, partial(_read_stacked, tuple(parts)))


def _read_stacked(parts: Sequence[TensorRef]) -> torch.Tensor:
    return torch.stack([part.read() for part in parts], 1)


def _is_along(shapes: Sequence[tuple[int, ...]], dim: int, counts: Sequence[int]) -> bool:
    """Tell whether parts have these sizes along a dim, and are alike along all others."""
    is_alike = len({(*s[:dim], *s[dim + 1 :]) for s in shapes}) == 1
    return is_alike and all(s[dim] == count for s, count in zip(shapes, counts, strict=True))


def _chosen(
    dims: Sequence[int], own: tuple[int, ...], shape: tuple[int, ...] | None, total: int, batch: int
) -> int | None:
    """Return the dim, of those along which parts may follow one another, along which they do.

    In the reference it has the size of all. Where that, too, leaves several: tokens are the dim after the
    sequences, or in `[B, h, s, D]` the one after the heads, or they come first.
    """
    if shape is not None and len(shape) == len(own):
        dims = [d for d in dims if shape[d] == total]
    if len(dims) <= 1:
        return dims[0] if dims else None
    if len(own) == 4:
        order = (2, 1, 3, 0)
    elif len(own) == 3 and own[0] not in (1, batch):
        order = (2, 1, 0, 3)  # [3, B, s], positions of images
    else:
        order = (1, 0, 2, 3)
    return next((d for d in order if d in dims), dims[0])


def _rows(parts: Sequence[TensorRef], dim: int, batch: int) -> TensorRef:
    """Return `[*, B*S, *]` of `[*, B*s, *]`: each sequence's tokens stay together."""
    first = parts[0].meta
    shape = list(first.shape)
    shape[dim] = sum(part.meta.shape[dim] for part in parts)
    return derived(shape, first.dtype, partial(_read_rows, tuple(parts), dim, batch))


def _read_rows(parts: Sequence[TensorRef], dim: int, batch: int) -> torch.Tensor:
    unfolded = [part.read().unflatten(dim, (batch, -1)) for part in parts]
    return torch.cat(unfolded, dim + 1).flatten(dim, dim + 1)


def _scores(parts: Sequence[TensorRef], shape: tuple[int, ...]) -> TensorRef:
    """Return `[*, S, S]` of `[*, s, t]`: later keys get nothing."""
    first = parts[0].meta
    whole = (*first.shape[:-2], *shape[-2:])
    return derived(whole, first.dtype, partial(_read_scores, tuple(parts), shape[-1]))


def _read_scores(parts: Sequence[TensorRef], keys: int) -> torch.Tensor:
    read = [part.read()[..., :keys] for part in parts]
    return torch.cat([torch.nn.functional.pad(x, (0, keys - x.shape[-1])) for x in read], -2)
