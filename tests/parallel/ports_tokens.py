"""Context-parallel ports: each rank has some of the tokens, and attention gathers the keys and values of all.

Shape legend: B = batch, H = heads, S = all tokens, s = a rank's own, D = channels of a head.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tests.parallel.ports import BATCH, TOKENS, Port, inputs
from validator.wrapping import wrap

__all__ = [
    "MULTIMODAL",
    "ORDERS",
    "boundary_masked",
    "context_port",
    "positions_along_sequences",
    "positions_contiguous",
    "positions_restart",
    "tokens_of",
]

ORDERS = ("contiguous", "zigzag", "interleaved", "packed")
"""How tokens are dealt: in runs, a chunk from either end, one in turn, zigzag in each of two sequences."""


def tokens_of(order: str, rank: int, ranks: int, tokens: int = TOKENS) -> Tensor:
    """Return `[s]` the positions of a rank's tokens."""
    if order == "packed":
        half = tokens // 2
        first = tokens_of("zigzag", rank, ranks, half)
        return torch.cat([first, half + first])
    everything = torch.arange(tokens)
    if order == "contiguous":
        return everything.chunk(ranks)[rank]
    if order == "interleaved":
        return everything[rank::ranks]
    chunks = everything.chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def context_port(order: str, ranks: int = 2, *, family: str = "llama", **declared: Any) -> Port:
    """Return a port whose tokens are dealt in one of `ORDERS`; `declared` goes to `validator.check`."""
    return Port(
        family=family,
        ranks=ranks,
        shard=partial(_with_gathering_attention, order=order),
        run=partial(_run, order=order),
        declared=declared,
    )


def _multimodal() -> dict[str, Any]:
    """Return inputs with `[3, B, S]` positions as an image gives them: its rows and columns count apart."""
    given = inputs()
    time = torch.arange(TOKENS)
    image = slice(4, 16)
    rows, columns = time.clone(), time.clone()
    time[image], rows[image], columns[image] = 4, 4 + torch.arange(12) // 4, 4 + torch.arange(12) % 4
    positions = torch.stack([time, rows, columns])[:, None].expand(3, BATCH, TOKENS)
    return {**given, "position_ids": positions.contiguous()}


def _run_multimodal(model: Any, given: Mapping[str, Any], *, order: str) -> Any:
    mine = tokens_of(order, dist.get_rank(), dist.get_world_size())
    return model(
        input_ids=given["input_ids"][:, mine],
        position_ids=given["position_ids"][:, :, mine],
        use_cache=False,
    )


def _with_gathering_attention(model: Any, *, order: str) -> nn.Module:
    AttentionInterface.register("context_parallel", partial(_attend, order=order))
    model.set_attn_implementation("context_parallel")
    return model


def _run(model: Any, given: Mapping[str, Any], *, order: str) -> Any:
    mine = tokens_of(order, dist.get_rank(), dist.get_world_size())
    return model(input_ids=given["input_ids"][:, mine], position_ids=mine[None], use_cache=False)


def _attend(
    module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, *, order: str, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attend with `[B, H, s, D]` queries of this rank over the keys and values of all."""
    places = [tokens_of(order, rank, dist.get_world_size()) for rank in range(dist.get_world_size())]
    k, v = (_gathered(x, places).repeat_interleave(module.num_key_value_groups, dim=1) for x in (k, v))
    mask = getattr(module, "causal", _causal)(places[dist.get_rank()])
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling).transpose(1, 2), None


def _gathered(x: Tensor, places: list[Tensor]) -> Tensor:
    """Return `[B, H, S, D]` of all ranks' `[B, H, s, D]`, in the order of the tokens."""
    parts = [torch.empty_like(x.contiguous()) for _ in places]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=2)[:, :, torch.cat(places).argsort()]


def _causal(mine: Tensor) -> Tensor:
    """Return `[s, S]`: each token sees itself and those before it."""
    return mine[:, None] >= torch.arange(TOKENS)


MULTIMODAL = Port(
    family="qwen2.5-vl",
    ranks=2,
    shard=partial(_with_gathering_attention, order="contiguous"),
    given=_multimodal,
    run=partial(_run_multimodal, order="contiguous"),
)
"""Tokens and their three positions dealt in runs."""


def boundary_masked(model: Any) -> None:
    """Hide from rank 1's tokens in layer 1 the last one before its own chunk."""
    if dist.get_rank() == 1:

        def causal(mine: Tensor) -> Tensor:
            mask = _causal(mine)
            mask[:, mine[0] - 1] = False
            return mask

        model.model.layers[1].self_attn.causal = causal


def positions_contiguous(model: Any) -> None:
    """Take the rotary positions of a contiguous split, whichever tokens the rank has."""
    _rotate_at(model, lambda positions: tokens_of("contiguous", dist.get_rank(), dist.get_world_size())[None])


def positions_along_sequences(model: Any) -> None:
    """Deal the `[3, B, S]` positions along the sequences of the batch, not along the tokens."""
    mine = _multimodal()["position_ids"].chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
    wrong = mine[:, :, : TOKENS // dist.get_world_size()].expand(-1, BATCH, -1)
    wrap(model.model.language_model.rotary_emb, lambda inner, x, position_ids: inner(x, wrong))


def positions_restart(model: Any) -> None:
    """Begin anew with the positions of the second of two packed sequences."""
    _rotate_at(model, lambda positions: positions % (TOKENS // 2))


def _rotate_at(model: Any, changed: Callable[[Tensor], Tensor]) -> None:
    wrap(model.model.rotary_emb, lambda inner, x, position_ids: inner(x, changed(position_ids)))
