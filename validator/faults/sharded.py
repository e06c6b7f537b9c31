"""How faults of a tensor-parallel port are planted."""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from validator.errors import UsageError
from validator.faults.decoder import Decoder, bias_of, local, wrap

__all__ = ["bias_every_rank", "heads_in_turn", "partial_scale", "reduced_twice"]


def bias_every_rank(decoder: Decoder, *, layer: int) -> None:
    """Add the bias of a row-parallel projection to each rank's partial sum."""
    projection = decoder.layer(layer).self_attn.o_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        partial = linear(x, local(projection.weight), bias_of(projection))
        dist.all_reduce(partial)
        return partial

    wrap(projection, forward)


def heads_in_turn(decoder: Decoder, *, layer: int) -> None:
    """Deal the heads to the ranks one by one, not in contiguous runs."""
    attention = decoder.layer(layer).self_attn
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        weight = projection.weight.detach()
        if not isinstance(weight, DTensor):
            raise UsageError("tp-heads-in-turn needs weights that are sharded as DTensors, and these are not")
        heads = weight.full_tensor().unflatten(0, (-1, attention.head_dim))
        mine = heads[dist.get_rank() :: dist.get_world_size()]
        local(weight).copy_(mine.flatten(0, 1))


def partial_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale the partial sum of a row-parallel projection before it is reduced."""
    projection = decoder.layer(layer).mlp.down_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        partial = (linear(x.float(), local(projection.weight).float()) * factor).to(x.dtype)
        dist.all_reduce(partial)
        bias = bias_of(projection)
        return partial if bias is None else partial + bias

    wrap(projection, forward)


def reduced_twice(decoder: Decoder, *, layer: int) -> None:
    """Sum over the ranks what is summed already."""

    def forward(inner: Any, x: Tensor) -> Tensor:
        output: Tensor = inner(x)
        dist.all_reduce(output)
        return output

    wrap(decoder.layer(layer).mlp.down_proj, forward)
