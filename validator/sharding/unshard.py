"""Carry out a plan: put a logical tensor together from the ranks' tensors, and the other way round."""

from collections.abc import Callable, Collection

import torch

from validator.errors import LayoutError
from validator.sharding.plan import Holding, Plan
from validator.sharding.runs import Run

__all__ = ["shard", "unshard"]

_Index = tuple[slice | torch.Tensor, ...]


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
    chosen = [holding for holding in plan.holdings if holding.rank in sources and not holding.is_empty]
    # What overlaps without being a copy is taken from the last one.
    chosen.sort(key=lambda holding: (holding.rank in prefer, -holding.rank))
    terms: dict[int, torch.Tensor] = {}
    for holding in chosen:
        local = read(holding.rank)
        if local.shape != holding.shape:
            raise LayoutError(
                f"rank {holding.rank} holds {list(local.shape)} where its place is {list(holding.shape)}"
            )
        if _is_whole(holding, plan):
            terms[holding.term] = local
            continue
        if holding.term not in terms:
            terms[holding.term] = local.new_empty(plan.shape)
        _assign(terms[holding.term], _logical(holding), local, _local(holding))
    if not terms:
        return read(plan.holdings[0].rank).new_empty(plan.shape)
    return _reduce([terms[term] for term in sorted(terms)], plan.reduce)


def shard(plan: Plan, tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Cut a rank's own tensor from a logical one: the inverse of `unshard`.

    Args:
        plan: where every part lies.
        tensor: `plan.shape`.
        rank: whose tensor.

    Returns:
        The rank's own tensor, zero where it is padding. Of a sum the first term is the tensor and the others
        are zero; of another reduction every term is the tensor.

    Raises:
        LayoutError: the tensor has another shape than the plan says, or the rank is not in it.
    """
    if tuple(tensor.shape) != plan.shape:
        raise LayoutError(f"{list(tensor.shape)} where the plan is of {list(plan.shape)}")
    for holding in plan.holdings:
        if holding.rank == rank:
            break
    else:
        raise LayoutError(f"rank {rank} is not in a plan of the ranks {[h.rank for h in plan.holdings]}")
    local = tensor.new_zeros(holding.shape)
    first = min(other.term for other in plan.holdings)
    if not holding.is_empty and (plan.reduce != "sum" or holding.term == first):
        _assign(local, _local(holding), tensor, _logical(holding))
    return local


def _assign(target: torch.Tensor, into: _Index, source: torch.Tensor, from_: _Index) -> None:
    if target.element_size() == 1:  # float8 can't be indexed
        target, source = target.view(torch.uint8), source.contiguous().view(torch.uint8)
    target[into] = source[from_]


def _local(holding: Holding) -> _Index:
    return _index([[run.local for run in runs] for runs in holding.dims])


def _logical(holding: Holding) -> _Index:
    return _index([[run.logical for run in runs] for runs in holding.dims])


def _index(dims: list[list[range]]) -> _Index:
    """Return what selects all combinations: a slice where a dim is one range, else a tensor."""
    several = [dim for dim, ranges in enumerate(dims) if len(ranges) > 1]
    index: list[slice | torch.Tensor] = []
    for dim, ranges in enumerate(dims):
        if dim in several:
            places = torch.cat([torch.arange(r.start, r.stop, r.step) for r in ranges])
            behind = len(several) - several.index(dim) - 1
            index.append(places.reshape(-1, *[1] * behind))
        else:
            index.append(slice(ranges[0].start, ranges[0].stop, ranges[0].step))
    return tuple(index)


def _is_whole(holding: Holding, plan: Plan) -> bool:
    whole = tuple((Run(local=range(size), logical=range(size)),) for size in plan.shape)
    return holding.shape == plan.shape and holding.dims == whole


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
