"""What enters a sum that is scattered over ranks, as the tensor that it was before it was cut.

Collectives scatter along the first dim, or take a list with each rank's part. To scatter by token, a port
cuts `[B, S, D]` into the ranks' tokens and lays these one after the other: the same values in another order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import prod

import torch

from validator.align.derived import concatenated, stacked
from validator.capturing.records import Call, Collective, RankCapture, TensorRef

__all__ = ["whole_terms"]

_LOOKED_AT = 2
"""So many of the last tensors of the right size are compared with what entered: it is made of the last."""


def whole_terms(cand: Sequence[RankCapture]) -> tuple[RankCapture, ...]:
    """Let one tensor enter each scattered sum: what a module returned, if it was cut, else the ranks' parts.

    Args:
        cand: every rank's capture.
    """
    return tuple([_with_whole_terms(capture) for capture in cand])


def _with_whole_terms(capture: RankCapture) -> RankCapture:
    if all(collective.op != "reduce_scatter" for collective in capture.collectives):
        return capture
    ended = sorted((call for call in capture.calls if call.end is not None), key=lambda call: call.end or 0)
    return replace(capture, collectives=tuple([_whole(sum_, ended) for sum_ in capture.collectives]))


def _whole(sum_: Collective, ended: Sequence[Call]) -> Collective:
    count = len(sum_.ranks)
    if sum_.op != "reduce_scatter" or len(sum_.entered) not in (1, count):
        return sum_
    join = partial(concatenated, dim=0) if sum_.entered[0].meta.shape else stacked
    given = sum_.entered[0] if len(sum_.entered) == 1 else join(sum_.entered)
    if given.meta.one_in != 1:
        return sum_  # Without all values nothing tells whose parts they are.
    parts = given.read().reshape(-1).chunk(count)
    for term in _outputs_before(sum_, given, ended):
        # In whichever order: a rank that gets another's part shows in what it makes of it.
        if any(all(_holds(cut, part) for part in parts) for cut in _cuts(term.read(), count)):
            return replace(sum_, entered=(term,))
    return replace(sum_, entered=(given,))


def _outputs_before(sum_: Collective, given: TensorRef, ended: Sequence[Call]) -> Iterator[TensorRef]:
    """Yield the last outputs before a sum that have as many elements, the last first."""
    calls = (call for call in reversed(ended) if (call.end or 0) < sum_.start)
    values = (value for call in calls for value in call.outputs.values())
    tensors = (value for value in values if isinstance(value, TensorRef) and value.meta.placements is None)
    alike = (ref for ref in tensors if _kind(ref) == _kind(given))
    yield from islice(alike, _LOOKED_AT)


def _kind(ref: TensorRef) -> tuple[str, int]:
    return ref.meta.dtype, prod(ref.meta.shape)


def _cuts(term: torch.Tensor, count: int) -> Iterator[list[torch.Tensor]]:
    """Yield a tensor's elements, cut along each dim into equal parts."""
    for dim, size in enumerate(term.shape):
        if size % count == 0:
            yield [part.reshape(-1) for part in term.chunk(count, dim)]


def _holds(parts: Sequence[torch.Tensor], wanted: torch.Tensor) -> bool:
    return any(torch.equal(part, wanted) for part in parts)
