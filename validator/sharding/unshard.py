"""Carry out a plan: put a logical tensor together from the ranks' tensors."""

from collections.abc import Callable, Collection

import torch

from validator.errors import LayoutError
from validator.sharding.plan import Plan

__all__ = ["unshard"]


def unshard(plan: Plan, read: Callable[[int], torch.Tensor], *, prefer: Collection[int] = ()) -> torch.Tensor:
    """Put a logical tensor together.

    Args:
        plan: where every part lies.
        read: a rank's own tensor, of the shape that the plan says.
        prefer: ranks whose copies are taken where several ranks hold the same; else the lowest rank's.

    Returns:
        `plan.shape`, in the parts' dtype. Terms of a partial tensor are reduced in float64 (integers in
        their own dtype) and rounded once.

    Raises:
        LayoutError: a rank's tensor has another shape than the plan says.
    """
    sources = {min(ranks, key=lambda rank: (rank not in prefer, rank)) for ranks in plan.copies}
    terms: dict[int, torch.Tensor] = {}
    for holding in plan.holdings:
        if holding.rank not in sources or not (holding.segments or holding.shape == plan.shape):
            continue
        local = read(holding.rank)
        if local.shape != holding.shape:
            raise LayoutError(
                f"rank {holding.rank} holds {list(local.shape)} where its place is {list(holding.shape)}"
            )
        if holding.shape == plan.shape:
            terms[holding.term] = local
            continue
        if holding.term not in terms:
            terms[holding.term] = local.new_empty(plan.shape)
        for segment in holding.segments:
            terms[holding.term][_slices(segment.logical)] = local[_slices(segment.local)]
    if not terms:
        return read(plan.holdings[0].rank).new_empty(plan.shape)
    return _reduce(list(terms.values()), plan.reduce)


def _reduce(terms: list[torch.Tensor], reduce: str | None) -> torch.Tensor:
    if reduce is None:
        (whole,) = terms
        return whole
    dtype = terms[0].dtype
    stacked = torch.stack(terms)
    if dtype.is_floating_point:
        stacked = stacked.double()
    match reduce:
        case "sum":
            reduced = stacked.sum(0)
        case "avg":
            reduced = stacked.mean(0)
        case "max":
            reduced = stacked.amax(0)
        case "min":
            reduced = stacked.amin(0)
        case _:
            raise LayoutError(f"a partial tensor that {reduce!r} completes can't be put together")
    return reduced.to(dtype)


def _slices(box: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
