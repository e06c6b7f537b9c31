"""Faults that only a port split in a certain way can have, planted on one of its ranks or on all.

Each takes what `Port.candidate` returns and spoils the layer `LAYER` of it in place.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from validator.faults import parse
from validator.wrapping import wrap

__all__ = [
    "LAYER",
    "RANK",
    "key_head_of_others",
    "key_norm_of_others",
    "last_map_off_by_one",
    "mixed_up_answers",
    "named",
    "one_sum_of_two",
    "overcounted_shared_expert",
    "rolled_tokens",
    "scaled_experts",
    "scaled_term",
    "unsummed_attention",
]

LAYER, RANK = 1, 1

Spoil = Callable[[nn.Module], None]


class named:  # noqa: N801 - reads as a function that returns one; a closure can't be sent to another process
    """Return a spoil that plants a fault of the registry."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, model: nn.Module) -> None:
        parse(self.text).plant(model)


def key_head_of_others(model: Any) -> None:
    """Give one rank the keys of the head that other ranks have."""
    _exchange(model.model.layers[LAYER].self_attn.k_proj)


def key_norm_of_others(model: Any) -> None:
    """Give one rank the norm's weight of the key head that other ranks have."""
    _exchange(model.model.layers[LAYER].self_attn.k_norm)


def _exchange(module: Any) -> None:
    gathered = [torch.empty_like(module.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, module.weight.contiguous())
    if dist.get_rank() == RANK:
        module.weight.copy_(gathered[-1])


def unsummed_attention(model: Any) -> None:
    """Take the sum over the ranks away that attention leaves to its caller."""
    del model.model.layers[LAYER].self_attn.forward


def scaled_term(model: Any) -> None:
    """Let the last rank scale what it gives to the sum of a down projection."""
    projection = model.model.layers[LAYER].mlp.down_proj
    if dist.get_rank() == dist.get_world_size() - 1:
        wrap(projection, lambda inner, x: inner(x * 1.05))


def last_map_off_by_one(model: Any) -> None:
    """Let each expert of the last rank stand for the one before it."""
    plan = _plan(model)
    if dist.get_rank() == dist.get_world_size() - 1:
        inner = plan.local
        plan.local = lambda chosen: inner(chosen - 1)


def rolled_tokens(model: Any) -> None:
    """Let one rank give other tokens' results to the sum."""
    if dist.get_rank() == RANK:
        _plan(model).term = lambda term_TC: term_TC.roll(1, 0)


def scaled_experts(model: Any) -> None:
    """Scale what one rank gives to the sum."""
    if dist.get_rank() == RANK:
        _plan(model).term = lambda term_TC: term_TC * 1.05


def overcounted_shared_expert(model: Any) -> None:
    """Add all of the shared expert on each rank before the sum."""
    mlp = model.model.layers[LAYER].mlp
    for projection, dim in (
        (mlp.shared_expert.gate_proj, 0),
        (mlp.shared_expert.up_proj, 0),
        (mlp.shared_expert.down_proj, 1),
    ):
        parts = [torch.empty_like(projection.weight) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, projection.weight.contiguous())
        projection.weight = nn.Parameter(torch.cat(parts, dim), requires_grad=False)


def one_sum_of_two(model: Any) -> None:
    """Leave out the second of two sums."""
    plan = _plan(model)
    plan.groups = plan.groups[:1]


def mixed_up_answers(model: Any) -> None:
    """Put back what the experts return for half of the tokens as if they had been sent in another order."""
    plan = _plan(model)
    if dist.get_rank() == RANK:
        inner = plan.combine

        def combine(back_PC: Tensor, order_P: Tensor, weights_Tk: Tensor) -> Tensor:
            half = len(order_P) // 2
            mixed: Tensor = inner(back_PC, torch.cat([order_P[:half].flip(0), order_P[half:]]), weights_Tk)
            return mixed

        plan.combine = combine


def _plan(model: Any) -> Any:
    return model.model.layers[LAYER].mlp.plan
