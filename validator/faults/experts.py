"""Faults of experts: how tokens are sent to them, and how what they return is combined.

Shape legend: T = tokens, C = channels, k = experts of a token.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validator.faults.common import LAYER, MLP
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault
from validator.wrapping import wrap

__all__ = ["FAULTS"]

_Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
_CAPACITY_FACTOR = 0.5
"""Tokens that an expert takes, in units of those that it would get if all got equally many."""


def _change_experts(
    decoder: Decoder, layer: int, change: Callable[[int, _Experts, Tensor, Tensor, Tensor], Tensor]
) -> None:
    """Let a layer's experts return `change(count, experts, x_TC, chosen_Tk, weights_Tk)`."""
    experts = decoder.layer(layer).mlp.experts

    def forward(inner: Any, x_TC: Tensor, chosen_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        return change(experts.num_experts, inner, x_TC, chosen_Tk, weights_Tk)

    wrap(experts, forward)


def _moe_capacity(decoder: Decoder, *, layer: int) -> None:
    """Let an expert that has enough tokens drop the later ones."""

    def change(count: int, experts: _Experts, x_TC: Tensor, chosen_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        capacity = math.ceil(chosen_Tk.numel() / count * _CAPACITY_FACTOR)
        sent = torch.nn.functional.one_hot(chosen_Tk.flatten(), count)
        place = (sent.cumsum(0) * sent).sum(-1).view_as(chosen_Tk)
        return experts(x_TC, chosen_Tk, weights_Tk.masked_fill(place > capacity, 0.0))

    _change_experts(decoder, layer, change)


def _moe_map_shifted(decoder: Decoder, *, layer: int) -> None:
    """Let the last rank's experts each stand for the one before."""

    def change(count: int, experts: _Experts, x_TC: Tensor, chosen_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        is_last = chosen_Tk >= count // 2
        return experts(x_TC, torch.where(is_last, chosen_Tk - 1, chosen_Tk), weights_Tk)

    _change_experts(decoder, layer, change)


def _moe_half_missing(decoder: Decoder, *, layer: int) -> None:
    """Leave out what the second half of the experts returns."""

    def change(count: int, experts: _Experts, x_TC: Tensor, chosen_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        return experts(x_TC, chosen_Tk, weights_Tk.masked_fill(chosen_Tk >= count // 2, 0.0))

    _change_experts(decoder, layer, change)


def _moe_tokens_rolled(decoder: Decoder, *, layer: int) -> None:
    """Add the second half of the experts' results for other tokens."""

    def change(count: int, experts: _Experts, x_TC: Tensor, chosen_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        is_second = chosen_Tk >= count // 2
        first = experts(x_TC, chosen_Tk, weights_Tk.masked_fill(is_second, 0.0))
        second = experts(x_TC, chosen_Tk, weights_Tk.masked_fill(~is_second, 0.0))
        return first + second.roll(1, 0)

    _change_experts(decoder, layer, change)


def _moe_bf16_combine(decoder: Decoder, *, layer: int) -> None:
    """Add up what the experts return one by one, each partial sum rounded to bfloat16."""

    def change(count: int, experts: _Experts, x_TC: Tensor, chosen_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        total = torch.zeros_like(x_TC, dtype=torch.bfloat16)
        for slot in range(chosen_Tk.shape[-1]):
            of_slot = torch.arange(chosen_Tk.shape[-1], device=x_TC.device) == slot
            total += experts(x_TC, chosen_Tk, weights_Tk * of_slot).bfloat16()
        return total.to(x_TC.dtype)

    _change_experts(decoder, layer, change)


def _moe_unwritten(decoder: Decoder, *, layer: int) -> None:
    """Combine the row of an expert that got no token, which nobody wrote, with weight 0."""

    def change(count: int, experts: _Experts, x_TC: Tensor, chosen_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        combined = experts(x_TC, chosen_Tk, weights_Tk)
        if len(chosen_Tk.unique()) < count:
            combined[0] += 0.0 * torch.full_like(combined[0], torch.nan)  # padding points at the first token
        return combined

    _change_experts(decoder, layer, change)


_NEEDS = ("layer.mlp.experts.num_experts",)

FAULTS = tuple(
    Fault(
        name=name,
        what=what,
        module=f"{MLP}.experts",
        apply=apply,
        parameters=(LAYER,),
        needs=_NEEDS,
        zoo=zoo,
    )
    for name, what, apply, zoo in (
        (
            "moe-capacity",
            "An expert drops the tokens beyond half of an equal share.",
            _moe_capacity,
            ("moe-capacity-drop",),
        ),
        (
            "moe-map-shifted",
            "The map of experts to places is off by one for the second half of them.",
            _moe_map_shifted,
            ("moe-eplb-map",),
        ),
        (
            "moe-half-missing",
            "What the second half of the experts returns never reaches the sum over ranks.",
            _moe_half_missing,
            ("tp-ep-under-reduced",),
        ),
        (
            "moe-tokens-rolled",
            "The two halves of the experts are summed for different tokens.",
            _moe_tokens_rolled,
            ("moe-ep-psum-diff-tokens",),
        ),
        (
            "moe-bf16-combine",
            "What a token's experts return is added up in bfloat16.",
            _moe_bf16_combine,
            ("acc-bf16-combine",),
        ),
        (
            "moe-unwritten",
            "The row of an expert that got no token is combined, with weight 0, though nobody wrote it.",
            _moe_unwritten,
            ("uninit-empty-expert",),
        ),
    )
)
