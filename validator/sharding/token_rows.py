"""Whether ranks hold sequences and tokens in another order than a plan says, told by the reference's values.

Shape legend: B = batch, S = tokens, R = rows: a rank's own sequences and tokens.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Self

import torch

from validator.capturing.records import TensorRef
from validator.sharding.inference import CLEARLY
from validator.sharding.plan import Holding, Plan

__all__ = ["lie_elsewhere", "row_dims"]

_NEAR = 16.0
"""How many times smaller than the values' own squares a squared distance is of what is the same value."""

_MOST_ROWS = 1 << 12
"""Of more rows, the distances of all from all are too many."""


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
    parts = [_Part.of(holding, tensors[holding.rank], whole, dims) for holding in plan.holdings]
    energy = sum(float(part.said.square().sum()) for part in parts)
    planned = sum(float((part.local - part.said).square().sum()) for part in parts)
    if planned * _NEAR <= energy or any(
        _count(x, dims) > _MOST_ROWS for p in parts for x in (p.local, p.own)
    ):
        return False
    nearest = sum(
        float(torch.cdist(_rows(part.local, dims), _rows(part.own, dims)).amin(1).square().sum())
        for part in parts
        if part.local.numel()
    )
    return energy > nearest * _NEAR and nearest * CLEARLY < planned


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a rank holds, the reference's values there by the plan, and all rows among which they may be."""

    local: torch.Tensor
    said: torch.Tensor
    own: torch.Tensor

    @classmethod
    def of(cls, holding: Holding, tensor: TensorRef, whole: torch.Tensor, dims: Collection[int]) -> Self:
        local, own, said = tensor.read().double(), whole, whole
        for dim in range(whole.dim()):
            local = local.index_select(dim, _places(holding, dim, is_local=True))
            places = _places(holding, dim, is_local=False)
            said = said.index_select(dim, places)
            own = own if dim in dims else own.index_select(dim, places)
        return cls(local=local, said=said, own=own)


def _count(tensor: torch.Tensor, dims: Collection[int]) -> int:
    return prod(tensor.shape[dim] for dim in dims)


def _rows(tensor: torch.Tensor, dims: Collection[int]) -> torch.Tensor:
    """Return `[R, elements of a row]`."""
    moved = tensor.movedim(tuple(dims), tuple(range(len(dims))))
    return moved.flatten(0, len(dims) - 1).reshape(moved.shape[: len(dims)].numel(), -1)


def _places(holding: Holding, dim: int, *, is_local: bool) -> torch.Tensor:
    ranges = [run.local if is_local else run.logical for run in holding.dims[dim]]
    return torch.cat([torch.arange(0), *(torch.arange(r.start, r.stop, r.step) for r in ranges)])
