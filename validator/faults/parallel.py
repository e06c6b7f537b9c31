"""Faults of tensor-parallel ports; those that one process can show take no ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from validator.errors import UsageError
from validator.faults.common import ATTENTION, LAYER, MLP, RANK, factor_parameter
from validator.faults.decoder import Decoder, bias_of, local
from validator.faults.fault import Fault, Parameter
from validator.wrapping import wrap

__all__ = ["FAULTS"]


def _bias_every_rank(decoder: Decoder, *, layer: int) -> None:
    """Add the bias of a row-parallel projection to each rank's partial sum."""
    projection = decoder.layer(layer).self_attn.o_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        partial = linear(x, local(projection.weight), bias_of(projection))
        dist.all_reduce(partial)
        return partial

    wrap(projection, forward)


def _heads_in_turn(decoder: Decoder, *, layer: int) -> None:
    """Deal the heads to the ranks one by one, not in contiguous runs."""
    attention = decoder.layer(layer).self_attn
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        weight = projection.weight.detach()
        if not isinstance(weight, DTensor):
            raise UsageError("its weights are not sharded as DTensors")
        heads = weight.full_tensor().unflatten(0, (-1, attention.head_dim))
        mine = heads[dist.get_rank() :: dist.get_world_size()]
        local(weight).copy_(mine.flatten(0, 1))


def _reduced_twice(decoder: Decoder, *, layer: int) -> None:
    """Sum over the ranks what is summed already."""

    def forward(inner: Any, x: Tensor) -> Tensor:
        output: Tensor = inner(x)
        dist.all_reduce(output)
        return output

    wrap(decoder.layer(layer).mlp.down_proj, forward)


def _not_reduced(decoder: Decoder, *, layer: int) -> None:
    """Leave each rank with its own partial sum."""
    projection = decoder.layer(layer).mlp.down_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        return linear(x, local(projection.weight), bias_of(projection))

    wrap(projection, forward)


def _partial_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale the partial sum of a row-parallel projection before it is reduced."""
    projection = decoder.layer(layer).mlp.down_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        partial = (linear(x.float(), local(projection.weight).float()) * factor).to(x.dtype)
        dist.all_reduce(partial)
        bias = bias_of(projection)
        return partial if bias is None else partial + bias

    wrap(projection, forward)


def _shared_overcounted(decoder: Decoder, *, layer: int, ranks: int) -> None:
    """Add the shared expert's result once on every rank, though each has all of it."""
    mlp = decoder.layer(layer).mlp
    is_gated = hasattr(mlp, "shared_expert_gate")
    shared_expert = getattr(mlp, "shared_expert" if is_gated else "shared_experts", None)
    if shared_expert is None:
        raise UsageError(f"its layers[{layer}].mlp has no shared expert")

    def forward(inner: Any, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        _, weights, chosen = mlp.gate(flat)
        routed = mlp.experts(flat, chosen, weights).view_as(x)
        shared = shared_expert(flat).view_as(x) if is_gated else shared_expert(x)
        if is_gated:
            shared = torch.sigmoid(mlp.shared_expert_gate(flat)).view(*x.shape[:-1], 1) * shared
        total: Tensor = routed + ranks * shared
        return total

    wrap(mlp, forward)


def _k_norm_overcounted(decoder: Decoder, *, layer: int, ranks: int) -> None:
    """Count the squares of key heads that several ranks hold once on each."""
    norm = _norm_over_heads(decoder, layer)

    def forward(inner: Any, x: Tensor) -> Tensor:
        x32 = x.float()
        variance = ranks * x32.square().mean(-1, keepdim=True)
        normed: Tensor = norm.weight * (x32 * torch.rsqrt(variance + norm.variance_epsilon))
        return normed.to(x.dtype)

    wrap(norm, forward)


def _k_norm_slice(decoder: Decoder, *, layer: int) -> None:
    """Load the norm of the second half of the key heads with the weight of the first."""
    weight = _norm_over_heads(decoder, layer).weight
    half = len(weight) // 2
    weight[half:] = weight[:half].clone()


def _norm_over_heads(decoder: Decoder, layer: int) -> Any:
    attention = decoder.layer(layer).self_attn
    if len(attention.k_norm.weight) <= attention.head_dim:
        raise UsageError("its norm of the keys takes one head at a time")
    return attention.k_norm


def _qkv_by_head(decoder: Decoder, *, layer: int) -> None:
    """Read a fused weight, all queries before all keys and values, as one group of heads after another."""
    attention = decoder.layer(layer).self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    group = (attention.num_key_value_groups, 1, 1)
    for name in ("weight", "bias"):
        found = [getattr(projection, name) for projection in projections]
        if any(part is None for part in found):
            continue
        parts = [local(part) for part in found]
        heads = torch.cat(parts).unflatten(0, (-1, sum(group), attention.head_dim))
        for part, split in zip(parts, heads.split(group, 1), strict=True):
            part.copy_(split.flatten(0, 2))


_RANKS = Parameter(name="ranks", kind=int, default=2, what="how many ranks add it")
_K_NORM = ("layer.self_attn.k_norm.variance_epsilon",)

FAULTS = (
    Fault(
        name="tp-bias-every-rank",
        what="Each rank adds the bias of the output projection before the sum over ranks.",
        module=f"{ATTENTION}.o_proj",
        apply=_bias_every_rank,
        parameters=(LAYER,),
        needs=("layer.self_attn.o_proj.bias",),
        ranks=2,
        zoo=("tp-bias-every-rank",),
    ),
    Fault(
        name="tp-heads-in-turn",
        what="Heads are dealt to the ranks one by one, where they belong in contiguous runs.",
        module=f"{ATTENTION}.[qkv]_proj",
        apply=_heads_in_turn,
        parameters=(LAYER,),
        needs=tuple(f"layer.self_attn.{name}_proj.weight" for name in "qkv"),
        ranks=2,
    ),
    Fault(
        name="tp-reduced-twice",
        what="The down projection's result is summed over the ranks a second time.",
        module=f"{MLP}.down_proj",
        apply=_reduced_twice,
        parameters=(LAYER,),
        needs=("layer.mlp.down_proj",),
        ranks=2,
    ),
    Fault(
        name="tp-not-reduced",
        what="The down projection's partial sums are not added up over the ranks.",
        module=f"{MLP}.down_proj",
        apply=_not_reduced,
        parameters=(LAYER,),
        needs=("layer.mlp.down_proj.weight",),
        ranks=2,
    ),
    Fault(
        name="tp-partial-scale",
        what="The down projection's partial sum is scaled before the sum over ranks.",
        module=f"{MLP}.down_proj",
        apply=_partial_scale,
        parameters=(LAYER, factor_parameter(1.01), RANK),
        needs=("layer.mlp.down_proj.weight",),
        ranks=2,
    ),
    Fault(
        name="tp-shared-overcount",
        what="The shared expert's result, whole on every rank, is summed over the ranks.",
        module=MLP,
        apply=_shared_overcounted,
        parameters=(LAYER, _RANKS),
        needs=("layer.mlp.gate", "layer.mlp.experts"),
        zoo=("tp-shared-expert-double-reduce", "tp-replicated-shared-overcount"),
    ),
    Fault(
        name="tp-k-norm-overcount",
        what="The mean square of the keys counts heads once on every rank that holds them.",
        module=f"{ATTENTION}.k_norm",
        apply=_k_norm_overcounted,
        parameters=(LAYER, _RANKS),
        needs=_K_NORM,
        zoo=("tp-knorm-kv-replica",),
    ),
    Fault(
        name="tp-k-norm-slice",
        what="The second half of the key heads has the norm's weight of the first.",
        module=f"{ATTENTION}.k_norm",
        apply=_k_norm_slice,
        parameters=(LAYER,),
        needs=_K_NORM,
        zoo=("tp-knorm-kv-replica",),
    ),
    Fault(
        name="tp-qkv-by-head",
        what="A fused weight of all queries, keys and values is split as if it held one group after another.",
        module=f"{ATTENTION}.[qkv]_proj",
        apply=_qkv_by_head,
        parameters=(LAYER,),
        needs=tuple(f"layer.self_attn.{name}_proj.weight" for name in "qkv"),
        zoo=("tp-fused-qkv-interleave",),
    ),
)
