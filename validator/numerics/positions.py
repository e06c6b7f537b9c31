"""How far apart two next-token distributions are, one position at a time.

Shape legend: V = vocabulary, B = positions of one block.
"""

import math

import torch
from torch import Tensor

from validator.numerics.divergences import js_divergence, kl_divergence, total_variation
from validator.numerics.flips import flip_sigmas, overtaking_probability
from validator.numerics.formats import Format
from validator.numerics.ulp import ulp

__all__ = ["IGNORED_TARGET", "has_distribution", "position_figures", "storage_variance"]

IGNORED_TARGET = -100  # as torch's cross_entropy has it
# What a position counts where the candidate has no distribution: as far as can be, and not by noise.
_WITHOUT_CANDIDATE = {
    "kl": math.inf,
    "kl_reverse": math.inf,
    "js": math.log(2),
    "total_variation": 1.0,
    "top_k_overlap": 0.0,
    "flipped": True,
    "choice_cand": -1,
    "margin": math.inf,
    "flip_sigmas": math.inf,
    "overtaking": 0.0,
    "probability_change": 1.0,
    "nll_cand": math.inf,
}


def position_figures(
    *, ref: Tensor, cand: Tensor, variance: Tensor, storage: Tensor, top_k: int, targets: Tensor | None
) -> dict[str, Tensor]:
    """Compare the distributions of each position.

    Args:
        ref: `[B, V]` float64 reference logits, with a distribution at every position; -inf where masked.
        cand: `[B, V]` float64 candidate logits, whatever they hold.
        variance: `[B, V]` float64, variance of `cand - ref` by rounding.
        storage: `[B, V]` float64, the variance that storing both sides' logits makes by itself.
        top_k: how many tokens the overlap looks at.
        targets: `[B]` integer, -100 where there is none; None leaves out what needs them.

    Returns:
        One `[B]` column a figure, by name: booleans `undefined` (the candidate has no distribution),
        `flipped` and `has_target`, int64 `choice_ref` and `choice_cand`, float64 for all others. Where the
        candidate has no distribution they say that it is as far away as can be, and not by noise.

    Source:
        Noise floor of KL: its expansion to second order in independent logit noise.
    """
    log_p, log_q = torch.log_softmax(ref, dim=-1), torch.log_softmax(cand, dim=-1)
    p = log_p.exp()
    top_ref = torch.topk(ref, min(max(top_k, 2), ref.shape[-1]), dim=-1).indices
    top_cand = torch.topk(cand, top_k, dim=-1).indices
    # Not the first of topk, which breaks ties differently when other entries differ.
    choice_ref, choice_cand = ref.argmax(dim=-1), cand.argmax(dim=-1)
    shared = (top_ref[:, :top_k, None] == top_cand[:, None, :]).sum(dim=(1, 2))
    noise = {"ref": ref, "variance": variance}
    figures = {
        "kl": kl_divergence(log_p, log_q),
        "kl_reverse": kl_divergence(log_q, log_p),
        "kl_noise_floor": _noise_floor(p, variance),
        "kl_storage_floor": _noise_floor(p, storage),
        "js": js_divergence(log_p, log_q),
        "total_variation": total_variation(log_p, log_q),
        "top_k_overlap": shared.to(torch.float64) / top_k,
        "choice_ref": choice_ref,
        "choice_cand": choice_cand,
        "flipped": choice_ref != choice_cand,
        "probability_change": _entry(log_q, choice_ref).exp() - _entry(p, choice_ref),
        "margin": _entry(ref, choice_ref) - _entry(ref, choice_cand),
        "runner_up_margin": _runner_up_margin(ref, top_ref),
        "flip_sigmas": flip_sigmas(**noise, choice_ref=choice_ref, choice_cand=choice_cand),
        "overtaking": overtaking_probability(**noise, ranked=top_ref),
    }
    if targets is not None:
        token = targets.clamp_min(0).to(torch.int64)
        figures["nll_ref"] = -_entry(log_p, token)
        figures["nll_cand"] = -_entry(log_q, token)
        figures["has_target"] = (targets != IGNORED_TARGET) & (figures["nll_ref"] < math.inf)

    undefined = ~has_distribution(cand)
    for name, worst in _WITHOUT_CANDIDATE.items():
        if name in figures:
            figures[name].masked_fill_(undefined, worst)
    return {"undefined": undefined, **figures}


def has_distribution(logits: Tensor) -> Tensor:
    """Tell for `[B, V]` logits which positions, `[B]`, hold no NaN, no +inf, and something not masked."""
    return torch.isfinite(logits.amax(dim=-1))


def storage_variance(logits: Tensor, fmt: Format) -> Tensor:
    """Give the variance of one rounding to nearest of `[B, V]` float64 logits; 0 where masked."""
    return ulp(logits, fmt).nan_to_num_(0.0).square_().div_(12)


def _noise_floor(p: Tensor, variance: Tensor) -> Tensor:
    return (p * (1 - p) * variance).sum(dim=-1) / 2


def _runner_up_margin(ref: Tensor, ranked: Tensor) -> Tensor:
    if ranked.shape[-1] < 2:
        return ref.new_full(ref.shape[:1], math.inf)
    return _entry(ref, ranked[:, 0]) - _entry(ref, ranked[:, 1])


def _entry(values: Tensor, token: Tensor) -> Tensor:
    return values.gather(-1, token[:, None]).squeeze(-1)
