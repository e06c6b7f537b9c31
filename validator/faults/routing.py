"""Faults of routers: which experts a token is sent to, and with what weights.

Shape legend: T = tokens, E = experts, k = experts of a token.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from validator.errors import UsageError
from validator.faults.common import LAYER, MLP
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault
from validator.wrapping import wrap

__all__ = ["FAULTS"]

_SUM_FLOOR = 1e-20
"""What the router of DeepSeek-V3 adds to the sum that it divides by."""


def _reweigh(decoder: Decoder, layer: int, weigh: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> None:
    """Let a router return other weights, `weigh(gate, logits_TE, weights_Tk, chosen_Tk)`."""
    gate = decoder.layer(layer).mlp.gate

    def forward(inner: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_TE, weights_Tk, chosen_Tk = inner(x)
        return logits_TE, weigh(gate, logits_TE, weights_Tk, chosen_Tk).to(weights_Tk.dtype), chosen_Tk

    wrap(gate, forward)


def _moe_no_renorm(decoder: Decoder, *, layer: int) -> None:
    """Leave the weights as probabilities among all experts."""
    # A router without the attribute, such as Mixtral's, always normalises.
    if not getattr(decoder.layer(layer).mlp.gate, "norm_topk_prob", True):
        raise UsageError("its weights are not divided by their sum")

    def weigh(gate: Any, logits_TE: Tensor, weights_Tk: Tensor, chosen_Tk: Tensor) -> Tensor:
        return torch.softmax(logits_TE.float(), -1).gather(-1, chosen_Tk)

    _reweigh(decoder, layer, weigh)


def _moe_raw_logits(decoder: Decoder, *, layer: int) -> None:
    """Weigh by the logits themselves."""

    def weigh(gate: Any, logits_TE: Tensor, weights_Tk: Tensor, chosen_Tk: Tensor) -> Tensor:
        return logits_TE.gather(-1, chosen_Tk)

    _reweigh(decoder, layer, weigh)


def _moe_softmax_twice(decoder: Decoder, *, layer: int) -> None:
    """Take the softmax of the softmax."""

    def weigh(gate: Any, logits_TE: Tensor, weights_Tk: Tensor, chosen_Tk: Tensor) -> Tensor:
        twice_TE = torch.softmax(torch.softmax(logits_TE.float(), -1), -1)
        return _normalised(gate, twice_TE.gather(-1, chosen_Tk))

    _reweigh(decoder, layer, weigh)


def _moe_unscaled(decoder: Decoder, *, layer: int) -> None:
    """Leave out the factor on routed experts."""
    gate = decoder.layer(layer).mlp.gate
    if gate.routed_scaling_factor == 1.0:
        raise UsageError("the scaling of its routed experts is 1")
    gate.routed_scaling_factor = 1.0


def _moe_marker_slot(decoder: Decoder, *, layer: int) -> None:
    """Spend the slot of the least of a token's experts on something else."""

    def weigh(gate: Any, logits_TE: Tensor, weights_Tk: Tensor, chosen_Tk: Tensor) -> Tensor:
        return weights_Tk.scatter(-1, weights_Tk.argmin(-1, keepdim=True), 0.0)

    _reweigh(decoder, layer, weigh)


def _moe_bias_cancelled(decoder: Decoder, *, layer: int) -> None:
    """Recover scores from their sums with the bias."""

    def weigh(gate: Any, logits_TE: Tensor, weights_Tk: Tensor, chosen_Tk: Tensor) -> Tensor:
        bias_E = gate.e_score_correction_bias
        scores_TE = (logits_TE.sigmoid() + bias_E) - bias_E
        scale: float = gate.routed_scaling_factor
        return _normalised(gate, scores_TE.gather(-1, chosen_Tk)) * scale

    _reweigh(decoder, layer, weigh)


def _normalised(gate: Any, weights_Tk: Tensor) -> Tensor:
    if not gate.norm_topk_prob:
        return weights_Tk
    return weights_Tk / (weights_Tk.sum(-1, keepdim=True) + _SUM_FLOOR)


def _moe_group_max(decoder: Decoder, *, layer: int) -> None:
    """Score a group by its best expert."""
    _choose_in_groups(decoder, layer, score=lambda members: members.amax(-1), left_out=-torch.inf)


def _moe_masked_zero(decoder: Decoder, *, layer: int) -> None:
    """Give the experts of other groups a score of 0, which is more than a negative one."""
    _choose_in_groups(decoder, layer, score=lambda members: members.topk(2, -1)[0].sum(-1), left_out=0.0)


def _choose_in_groups(
    decoder: Decoder, layer: int, *, score: Callable[[Tensor], Tensor], left_out: float
) -> None:
    gate = decoder.layer(layer).mlp.gate

    def forward(inner: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_TE = linear(x.reshape(-1, x.shape[-1]).float(), gate.weight.float())
        scores_TE = logits_TE.sigmoid()
        biased = (scores_TE + gate.e_score_correction_bias).unflatten(-1, (gate.num_group, -1))
        groups = score(biased).topk(gate.topk_group, -1)[1]
        is_open = torch.zeros_like(biased[..., 0]).scatter(-1, groups, 1).bool()
        open_TE = biased.masked_fill(~is_open[..., None], left_out).flatten(-2)
        chosen_Tk = open_TE.topk(gate.top_k, -1)[1]
        weights_Tk = _normalised(gate, scores_TE.gather(-1, chosen_Tk)) * gate.routed_scaling_factor
        return logits_TE, weights_Tk, chosen_Tk

    wrap(gate, forward)


def _moe_bf16_bias(decoder: Decoder, *, layer: int) -> None:
    """Keep the bias on the scores in bfloat16."""
    gate = decoder.layer(layer).mlp.gate
    gate.e_score_correction_bias = gate.e_score_correction_bias.bfloat16()


def _moe_bf16_choice(decoder: Decoder, *, layer: int) -> None:
    """Round probabilities to bfloat16 before experts are chosen."""
    _route_narrowly(decoder, layer, lambda logits_TE: torch.softmax(logits_TE.float(), -1).bfloat16())


def _moe_bf16_router(decoder: Decoder, *, layer: int) -> None:
    """Compute probabilities and weights in bfloat16."""

    def probabilities(logits_TE: Tensor) -> Tensor:
        terms_TE = torch.exp(logits_TE.bfloat16() - logits_TE.bfloat16().amax(-1, keepdim=True))
        return terms_TE / terms_TE.sum(-1, keepdim=True)

    _route_narrowly(decoder, layer, probabilities)


def _route_narrowly(decoder: Decoder, layer: int, probabilities: Callable[[Tensor], Tensor]) -> None:
    gate = decoder.layer(layer).mlp.gate

    def forward(inner: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_TE = linear(x.reshape(-1, x.shape[-1]), gate.weight)
        weights_Tk, chosen_Tk = probabilities(logits_TE).topk(gate.top_k, -1)
        if gate.norm_topk_prob:
            weights_Tk = weights_Tk / weights_Tk.sum(-1, keepdim=True)
        return logits_TE, weights_Tk.to(logits_TE.dtype), chosen_Tk

    wrap(gate, forward)


_SOFTMAX = ("layer.mlp.gate.norm_topk_prob",)
_GROUPS = ("layer.mlp.gate.e_score_correction_bias", "layer.mlp.gate.topk_group")
_GATE = f"{MLP}.gate"

FAULTS = (
    Fault(
        name="moe-no-renorm",
        what="The weights of a token's experts are not divided by their sum.",
        module=_GATE,
        apply=_moe_no_renorm,
        parameters=(LAYER,),
        needs=("layer.mlp.gate.top_k",),
        lacks=_GROUPS,
        zoo=("moe-renorm-missing",),
    ),
    Fault(
        name="moe-raw-logits",
        what="A token's experts are weighted by the router's logits.",
        module=_GATE,
        apply=_moe_raw_logits,
        parameters=(LAYER,),
        needs=("layer.mlp.gate.top_k",),
        zoo=("moe-raw-logit-weights",),
    ),
    Fault(
        name="moe-softmax-twice",
        what="The router's probabilities go through a second softmax.",
        module=_GATE,
        apply=_moe_softmax_twice,
        parameters=(LAYER,),
        needs=_SOFTMAX,
        lacks=_GROUPS,
        zoo=("moe-double-norm",),
    ),
    Fault(
        name="moe-unscaled",
        what="The scaling of the routed experts' weights is left out.",
        module=_GATE,
        apply=_moe_unscaled,
        parameters=(LAYER,),
        needs=("layer.mlp.gate.routed_scaling_factor",),
        zoo=("moe-routed-scale-npu",),
    ),
    Fault(
        name="moe-marker-slot",
        what="The least of a token's experts loses its slot to the shared expert's marker.",
        module=_GATE,
        apply=_moe_marker_slot,
        parameters=(LAYER,),
        needs=("layer.mlp.gate.top_k",),
        zoo=("moe-shared-marker-slot",),
    ),
    Fault(
        name="moe-bias-cancelled",
        what="Scores are recovered by subtracting the bias again, and small ones are lost.",
        module=_GATE,
        apply=_moe_bias_cancelled,
        parameters=(LAYER,),
        needs=_GROUPS,
        zoo=("moe-bias-cancellation",),
    ),
    Fault(
        name="moe-group-max",
        what="A group of experts is scored by its best expert, not by the sum of its best two.",
        module=_GATE,
        apply=_moe_group_max,
        parameters=(LAYER,),
        needs=_GROUPS,
        zoo=("moe-group-top2-sum",),
    ),
    Fault(
        name="moe-masked-zero",
        what="Experts of other groups get a score of 0, and are chosen where the group's own are negative.",
        module=_GATE,
        apply=_moe_masked_zero,
        parameters=(LAYER,),
        needs=_GROUPS,
        zoo=("moe-group-top2-sum",),
    ),
    Fault(
        name="moe-bf16-bias",
        what="The bias on the router's scores is stored in bfloat16.",
        module=_GATE,
        apply=_moe_bf16_bias,
        parameters=(LAYER,),
        needs=_GROUPS,
        zoo=("moe-bias-dtype",),
    ),
    Fault(
        name="moe-bf16-choice",
        what="The router's probabilities are rounded to bfloat16 before experts are chosen.",
        module=_GATE,
        apply=_moe_bf16_choice,
        parameters=(LAYER,),
        needs=_SOFTMAX,
        lacks=_GROUPS,
        zoo=("moe-probs-bf16-before-topk",),
    ),
    Fault(
        name="moe-bf16-router",
        what="The router computes its probabilities and weights in bfloat16.",
        module=_GATE,
        apply=_moe_bf16_router,
        parameters=(LAYER,),
        needs=_SOFTMAX,
        lacks=_GROUPS,
    ),
)
