"""Faults of routers and experts spoil what they say and nothing else."""

from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from validator.faults import parse

TOKENS, EXPERTS = 64, 8
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
}


def moe() -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**SIZES, norm_topk_prob=True)
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    for parameter in model.model.layers[1].mlp.parameters():
        nn.init.normal_(parameter)
    return model


def part(fault: str | None) -> SimpleNamespace:
    """Return what the router and the experts of a layer make of some tokens."""
    model = moe()
    if fault is not None:
        parse(fault).plant(model)
    x = torch.randn(TOKENS, 16, generator=torch.Generator().manual_seed(1))
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        _, weights, chosen = mlp.gate(x)
        return SimpleNamespace(weights=weights, chosen=chosen, combined=mlp.experts(x, chosen, weights))


def differing(x: Tensor, y: Tensor) -> list[int]:
    return (x != y).any(-1).nonzero().flatten().tolist()


def test_the_least_expert_of_each_token_loses_its_weight() -> None:
    healthy, spoiled = part(None), part("moe-marker-slot")
    assert torch.equal(spoiled.chosen, healthy.chosen)
    assert torch.equal(spoiled.weights[:, 0], healthy.weights[:, 0])
    assert not spoiled.weights[:, 1].any()


def test_weights_that_are_not_normalised_sum_to_less_than_one() -> None:
    healthy, spoiled = part(None), part("moe-no-renorm")
    assert torch.allclose(healthy.weights.sum(-1), torch.ones(TOKENS))
    assert bool((spoiled.weights.sum(-1) < 1).all())
    assert torch.allclose(spoiled.weights / spoiled.weights.sum(-1, keepdim=True), healthy.weights)


def test_a_full_expert_drops_its_later_tokens_alone() -> None:
    healthy, spoiled = part(None), part("moe-capacity")
    capacity = TOKENS * 2 // EXPERTS // 2
    dropped = set()
    for expert in range(EXPERTS):
        dropped |= set((healthy.chosen == expert).any(-1).nonzero().flatten().tolist()[capacity:])
    assert differing(spoiled.combined, healthy.combined) == sorted(dropped)


def test_only_tokens_of_the_second_half_of_the_experts_miss_something() -> None:
    healthy, spoiled = part(None), part("moe-half-missing")
    has_second = (healthy.chosen >= EXPERTS // 2).any(-1)
    assert differing(spoiled.combined, healthy.combined) == has_second.nonzero().flatten().tolist()


def test_a_fused_weight_read_by_group_has_the_same_rows_in_other_places() -> None:
    model, healthy = moe(), moe()
    parse("tp-qkv-by-head").plant(model)
    rows = [
        torch.cat([getattr(m.model.layers[1].self_attn, f"{name}_proj").weight for name in "qkv"])
        for m in (model, healthy)
    ]
    # Two groups: two heads of queries, one of keys, one of values each, in the order of the fused weight.
    heads = [0, 1, 4, 5, 2, 6, 3, 7]
    assert torch.equal(rows[0].unflatten(0, (8, 4)), rows[1].unflatten(0, (8, 4))[heads])
