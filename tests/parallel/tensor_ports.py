"""Tensor-parallel ports: heads by rank, some of them copies, and torch's `parallelize_module`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import linear

from tests.parallel.ports import Port
from validator.wrapping import wrap

__all__ = [
    "COPIED_HEADS",
    "DTENSORS",
    "LATE_SUMS",
    "ONE_HEAD",
    "WIDE_NORMS",
    "keep",
    "planned",
    "shard_heads",
    "sum_rows",
]


def keep(module: Any, name: str, dim: int, parts: int, index: int) -> None:
    """Keep part `index` of `parts` of a parameter, along `dim`."""
    part = getattr(module, name).chunk(parts, dim)[index].clone()
    setattr(module, name, nn.Parameter(part, requires_grad=False))


def sum_rows(projection: Any, group: Any = None) -> None:
    """Let a projection whose columns are split add up the terms of all ranks."""

    def forward(inner: Any, x: Tensor) -> Tensor:
        term = linear(x, projection.weight)
        dist.all_reduce(term, group=group)
        return term

    wrap(projection, forward)


def _shard_mlp(mlp: Any, parts: int, index: int, group: Any = None) -> None:
    """Split the intermediate channels of a gated MLP."""
    for projection in (mlp.gate_proj, mlp.up_proj):
        keep(projection, "weight", 0, parts, index)
    keep(mlp.down_proj, "weight", 1, parts, index)
    sum_rows(mlp.down_proj, group)


def _heads_by_rank(model: Any) -> nn.Module:
    """Give each rank its query heads, and copies of the key and value heads where ranks share one."""
    return shard_heads(model, dist.get_world_size(), dist.get_rank())


def shard_heads(model: Any, parts: int, index: int, group: Any = None) -> nn.Module:
    """Split heads and intermediate channels over the ranks of a group, of which this is one."""
    for layer in model.model.layers:
        attention = layer.self_attn
        heads = attention.config.num_key_value_heads
        own_parts = min(parts, heads)
        own = index * own_parts // parts
        keep(attention.q_proj, "weight", 0, parts, index)
        for projection in (attention.k_proj, attention.v_proj):
            keep(projection, "weight", 0, own_parts, own)
        attention.num_key_value_groups //= parts // own_parts
        keep(attention.o_proj, "weight", 1, parts, index)
        sum_rows(attention.o_proj, group)
        if len(attention.k_norm.weight) > attention.head_dim:
            keep(attention.q_norm, "weight", 0, parts, index)
            keep(attention.k_norm, "weight", 0, own_parts, own)
            _normalise_over_ranks(attention.q_norm, own_parts=parts)
            _normalise_over_ranks(attention.k_norm, own_parts=own_parts)
        _shard_mlp(layer.mlp, parts, index, group)
    return model


def _normalise_over_ranks(norm: Any, *, own_parts: int) -> None:
    """Take the mean square over the heads of all ranks, each head once."""
    copies = dist.get_world_size() // own_parts

    def forward(inner: Any, x: Tensor) -> Tensor:
        x32 = x.float()
        squares = x32.square().sum(-1, keepdim=True)
        dist.all_reduce(squares)
        variance = squares / (copies * own_parts * x.shape[-1])
        normed: Tensor = norm.weight * (x32 * torch.rsqrt(variance + norm.variance_epsilon))
        return normed.to(x.dtype)

    wrap(norm, forward)


def _sum_in_caller(model: Any) -> nn.Module:
    """Let projections return their terms, which attention and MLP add up."""
    parts, index = dist.get_world_size(), dist.get_rank()

    def sum_output(inner: Any, *args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        dist.all_reduce(output[0] if isinstance(output, tuple) else output)
        return output

    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            keep(projection, "weight", 0, parts, index)
        keep(layer.self_attn.o_proj, "weight", 1, parts, index)
        for projection in (layer.mlp.gate_proj, layer.mlp.up_proj):
            keep(projection, "weight", 0, parts, index)
        keep(layer.mlp.down_proj, "weight", 1, parts, index)
        wrap(layer.self_attn, sum_output)
        wrap(layer.mlp, sum_output)
    return model


def _dtensors(model: Any) -> nn.Module:
    """Shard as torch's tutorial on tensor parallelism does: tokens of norms and residuals, and heads."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    by_token: dict[str, Any] = {"output_layouts": Shard(1), "use_local_output": False}
    plan: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), **by_token),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for i in range(len(model.model.layers)):
        layer = f"model.layers.{i}"
        whole: dict[str, Any] = {"desired_input_kwarg_layouts": {"hidden_states": Replicate()}}
        plan |= {
            f"{layer}.input_layernorm": SequenceParallel(),
            f"{layer}.self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)}, **whole
            ),
            f"{layer}.self_attn.o_proj": RowwiseParallel(**by_token),
            f"{layer}.post_attention_layernorm": SequenceParallel(),
            f"{layer}.mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            f"{layer}.mlp.gate_proj": ColwiseParallel(),
            f"{layer}.mlp.up_proj": ColwiseParallel(),
            f"{layer}.mlp.down_proj": RowwiseParallel(**by_token),
        }
        plan |= {f"{layer}.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    return parallelize_module(model, mesh, plan)


def planned(family: str, ranks: int, dtype: str) -> Port:
    """Return a port that transformers shards by the model's own plan."""
    return Port(family=family, ranks=ranks, dtype=dtype, distributed={"tp_plan": "auto", "tp_size": ranks})


COPIED_HEADS = Port(family="qwen3", ranks=4, shard=_heads_by_rank, changes={"num_key_value_heads": 2})
ONE_HEAD = Port(family="qwen3", ranks=4, shard=_heads_by_rank, changes={"num_key_value_heads": 1})
WIDE_NORMS = Port(family="olmo2", ranks=4, shard=_heads_by_rank, changes={"num_key_value_heads": 2})
LATE_SUMS = Port(family="llama", ranks=2, shard=_sum_in_caller)
DTENSORS = Port(family="llama", ranks=2, shard=_dtensors)
