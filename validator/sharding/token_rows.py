"""Whether ranks hold sequences and tokens in another order than a plan says, told by the reference's values.

Shape legend: B = batch, S = tokens, R = rows: a rank's own sequences and tokens.
"""

from collections.abc import Collection, Mapping

import torch

from validator.capturing.records import TensorRef
from validator.sharding.plan import Holding, Plan

__all__ = ["lie_elsewhere", "row_dims"]

_CLEARLY = 4.0
"""How many times smaller the squared distance must be than at the planned places: as in `inference`."""

_NEAR = 16.0
"""How many times smaller than the values' own squares a squared distance is of what is the same value."""


def row_dims(plan: Plan, *, batch: int, tokens: int) -> tuple[int, ...]:
    """Return the dims of sequences and tokens of a plan by their sizes, where one of them is split.

    Args:
        plan: how the ranks' tensors lie.
        batch: B of the model's inputs.
        tokens: S of the model's inputs.
    """
    if plan.shape[:1] == (batch * tokens,):
        dims = [0]
    else:
        dims = [d for d, size in enumerate(plan.shape) if size == tokens or (d == 0 and size == batch)]
    is_split = any(holding.shape[d] != plan.shape[d] for holding in plan.holdings for d in dims)
    return tuple(dims) if is_split else ()


def lie_elsewhere(
    plan: Plan, tensors: Mapping[int, TensorRef], ref: TensorRef, dims: Collection[int]
) -> bool:
    """Tell whether the ranks' rows are the reference's, but not those that the plan says.

    A fault moves values away from all of the reference's rows; only another order moves them to others.

    Args:
        plan: how the ranks' tensors are said to lie.
        tensors: the ranks' own, of floating numbers.
        ref: the reference's.
        dims: of the rows, as `row_dims` returns them.
    """
    whole = ref.read().double()
    planned = nearest = energy = 0.0
    for holding in plan.holdings:
        if holding.is_empty:
            continue
        local, own = tensors[holding.rank].read().double(), whole
        for dim in range(len(plan.shape)):
            places = _places(holding, dim, is_local=True)
            local = local.index_select(dim, places)
            if dim not in dims:
                own = own.index_select(dim, _places(holding, dim, is_local=False))
        said = own
        for dim in dims:
            said = said.index_select(dim, _places(holding, dim, is_local=False))
        at_plan = float((local - said).square().sum())
        energy += float(said.square().sum())
        planned += at_plan
        if at_plan:
            distances = torch.cdist(_rows(local, dims), _rows(own, dims))
            nearest += float(distances.min(1).values.square().sum())
    return planned * _NEAR > energy > nearest * _NEAR and nearest * _CLEARLY < planned


def _rows(tensor: torch.Tensor, dims: Collection[int]) -> torch.Tensor:
    """Return `[R, elements of a row]`."""
    moved = tensor.movedim(tuple(dims), tuple(range(len(dims))))
    return moved.flatten(0, len(dims) - 1).reshape(moved.shape[: len(dims)].numel(), -1)


def _places(holding: Holding, dim: int, *, is_local: bool) -> torch.Tensor:
    ranges = [run.local if is_local else run.logical for run in holding.dims[dim]]
    return torch.cat([torch.arange(r.start, r.stop, r.step) for r in ranges])
