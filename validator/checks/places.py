"""Where on an edge: which elements are judged, and what the guilty ones have in common.

Shape legend: * = the edge's shape.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from validator.align.traces import LogicalTensor, Part, View

__all__ = ["judged_region", "places", "real_region", "single_rank"]

LISTED = 64
"""At most so many tokens, channels or heads are listed in a finding."""

_NAMES = {
    "batch": "sequences",
    "token": "tokens",
    "channel": "channels",
    "head": "heads",
    "expert": "experts",
}


def judged_region(cand: LogicalTensor, real: Tensor | None, view: View, world_size: int) -> Tensor | None:
    """Return which elements are judged: those of real tokens that the view's ranks hold.

    Args:
        cand: the candidate's edge.
        real: `[batch, tokens]` boolean, or None for all.
        view: its ranks; where it holds all ranks, all elements are its own.
        world_size: number of ranks.

    Returns:
        `[*]` boolean, or None for all.
    """
    region = None
    if real is not None:
        region = real_region(cand.data.shape, cand.dims, real)
    if len(view.ranks) < world_size and cand.parts:
        held = torch.zeros(cand.data.shape, dtype=torch.bool)
        for part in cand.parts:
            if part.rank in view.ranks:
                held[_slices(part)] = True
        region = held if region is None else region & held
    return region


def real_region(shape: Sequence[int], dims: Sequence[str], real: Tensor) -> Tensor | None:
    """Return which elements are of real tokens: a view of `real` in a tensor's shape, or None for all.

    Args:
        shape: of the tensor.
        dims: meaning of each dim.
        real: `[batch, tokens]` boolean.
    """
    batch = [i for i, d in enumerate(dims) if d == "batch" and shape[i] == real.shape[0]]
    token = [i for i, d in enumerate(dims) if d == "token"]
    if not token:
        return None
    if batch and shape[token[0]] == real.shape[1]:
        sizes = [1] * len(shape)
        sizes[batch[0]], sizes[token[0]] = real.shape
        return real.reshape(sizes).expand(tuple(shape))
    if not batch and shape[token[0]] == real.numel() and real.shape[0] > 1:
        sizes = [1] * len(shape)
        sizes[token[0]] = real.numel()
        return real.reshape(sizes).expand(tuple(shape))
    return None


def single_rank(cand: LogicalTensor, outside: Tensor, view: View, world_size: int) -> int | None:
    """Return the one rank that holds all guilty elements, or None: several do, or it is a run of one."""
    if world_size == 1 or not len(outside):
        return None
    if len(view.ranks) == 1:
        return view.ranks[0]
    guilty = torch.zeros(cand.data.shape, dtype=torch.bool)
    guilty[tuple(outside.T)] = True
    count = int(guilty.sum())
    held: dict[int, int] = {}
    for part in cand.parts:  # a rank's parts don't overlap
        held[part.rank] = held.get(part.rank, 0) + int(guilty[_slices(part)].sum())
    holders = [rank for rank, elements in held.items() if elements == count]
    return holders[0] if len(holders) == 1 else None


def places(outside: Tensor, cand: LogicalTensor) -> Mapping[str, list[int] | None]:
    """Say where the guilty elements are: for each meaning of a dim, the few indices that hold them all.

    Returns:
        `sequences`, `tokens`, `heads`, `channels`, `experts`: a list, or None where the elements are spread
        over most of that dim (or it has no such dim).
    """
    found: dict[str, list[int] | None] = dict.fromkeys(_NAMES.values())
    for dim, meaning in enumerate(cand.dims):
        name = _NAMES.get(meaning)
        if name is None or not len(outside):
            continue
        indices = torch.unique(outside[:, dim]).tolist()
        size = cand.data.shape[dim]
        if len(indices) <= LISTED and (len(indices) <= size // 2 or (size <= 2 and len(indices) < size)):
            found[name] = indices
    return found


def _slices(part: Part) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in part.box)
