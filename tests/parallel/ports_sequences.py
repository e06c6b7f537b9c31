"""A sequence-parallel port: tensor-parallel attention and MLP, and between them each rank's own tokens.

Before the projections all tokens are gathered; what a rank's part of a row-parallel projection gives is
summed over the ranks and scattered by token.

Shape legend: B = batch, S = all tokens, s = a rank's own, D = channels.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from tests.parallel.ports import TOKENS, Port
from tests.parallel.tensor_ports import keep
from validator.wrapping import wrap

__all__ = [
    "OWN_TOKENS",
    "SHARED_EXPERT",
    "not_gathered",
    "partial_scaled",
    "scattered_in_turn",
    "shared_expert_by_token",
]


def _shard(model: Any) -> nn.Module:
    parts, index = dist.get_world_size(), dist.get_rank()
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            keep(projection, "weight", 0, parts, index)
        for projection in (layer.mlp.gate_proj, layer.mlp.up_proj):
            keep(projection, "weight", 0, parts, index)
        for block, last in ((layer.self_attn, layer.self_attn.o_proj), (layer.mlp, layer.mlp.down_proj)):
            keep(last, "weight", 1, parts, index)
            wrap(block, _on_all_tokens)
        # Both ways that ports have: the block completes the sum, or its last projection does.
        _scatter_output(layer.self_attn, _scattered)
        _scatter(layer.mlp.down_proj, _scattered_from_list)
    wrap(model.model.embed_tokens, lambda inner, ids: inner(ids).chunk(parts, 1)[index].contiguous())
    wrap(model.lm_head, lambda inner, x: inner(_gathered(x)))
    return model


def _run(model: Any, given: Mapping[str, Any]) -> Any:
    return model(**given, position_ids=torch.arange(TOKENS)[None])


OWN_TOKENS = Port(family="llama", ranks=2, shard=_shard, run=_run, kernel="sdpa")


def _shard_shared_expert(model: Any) -> nn.Module:
    """Split the shared expert's channels alone, and let it add up the ranks' terms of all tokens."""
    parts, index = dist.get_world_size(), dist.get_rank()
    for layer in model.model.layers:
        shared = layer.mlp.shared_expert
        for projection in (shared.gate_proj, shared.up_proj):
            keep(projection, "weight", 0, parts, index)
        keep(shared.down_proj, "weight", 1, parts, index)
        wrap(shared.down_proj, _summed)
    return model


SHARED_EXPERT = Port(family="qwen2-moe", ranks=2, shard=_shard_shared_expert)


def _summed(inner: Any, x: Tensor) -> Tensor:
    term: Tensor = inner(x)
    dist.all_reduce(term)
    return term


def _on_all_tokens(inner: Any, x: Tensor | None = None, **others: Any) -> Any:
    if x is None:
        x = others.pop("hidden_states")
    return inner(_gathered(x), **others)


def _scatter_output(block: Any, scattered: Callable[[Tensor], Tensor]) -> None:
    """Let a block whose last projection returns its term add up the ranks' terms of each rank's tokens."""

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        term, *others = inner(*args, **kwargs)
        return scattered(term), *others

    wrap(block, forward)


def _scatter(projection: Any, scattered: Callable[[Tensor], Tensor], factor: float = 1.0) -> None:
    """Let a projection whose columns are split add up the ranks' terms of each rank's tokens."""
    wrap(projection, lambda inner, x: scattered((factor * linear(x, projection.weight).float()).to(x.dtype)))


def _gathered(x: Tensor) -> Tensor:
    """Return `[B, S, D]` of all ranks' `[B, s, D]`."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=1)


def _scattered(term: Tensor, *, last_first: bool = False) -> Tensor:
    """Return this rank's `[B, s, D]` of the sum of all ranks' `[B, S, D]`."""
    chunks = term.chunk(dist.get_world_size(), dim=1)
    own = torch.empty_like(chunks[0])
    dist.reduce_scatter_tensor(own, torch.cat(chunks[::-1] if last_first else chunks))
    return own


def _scattered_from_list(term: Tensor) -> Tensor:
    chunks = [chunk.contiguous() for chunk in term.chunk(dist.get_world_size(), dim=1)]
    own = torch.empty_like(chunks[0])
    dist.reduce_scatter(own, chunks)
    return own


def scattered_in_turn(model: Any) -> None:
    """Scatter the sum of layer 1's attention by token in the opposite order of the ranks."""
    attention = model.model.layers[1].self_attn
    attention.forward = attention.forward.__wrapped__
    _scatter_output(attention, partial(_scattered, last_first=True))


def partial_scaled(model: Any) -> None:
    """Scale what rank 1 gives to the sum of layer 1's down projection."""
    if dist.get_rank() == 1:
        _scatter(model.model.layers[1].mlp.down_proj, _scattered_from_list, factor=1.01)


def not_gathered(model: Any) -> None:
    """Let each rank of layer 1's MLP work on its own tokens, with its own channels alone."""
    mlp = model.model.layers[1].mlp

    def forward(inner: Any, x: Tensor) -> Tensor:
        hidden = mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)
        return mlp.down_proj(hidden)

    wrap(mlp, forward)
    wrap(mlp.down_proj, lambda inner, x: linear(x, mlp.down_proj.weight))


def shared_expert_by_token(model: Any) -> None:
    """Let each rank's part of layer 1's shared expert work on the rank's own tokens, and gather these."""
    shared = model.model.layers[1].mlp.shared_expert

    def forward(inner: Any, x: Tensor) -> Tensor:
        own = x.chunk(dist.get_world_size(), 0)[dist.get_rank()]
        hidden = shared.act_fn(shared.gate_proj(own)) * shared.up_proj(own)
        return _gathered(linear(hidden, shared.down_proj.weight)[None])[0]

    wrap(shared, forward)
