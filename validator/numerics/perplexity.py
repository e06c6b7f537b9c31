"""Perplexity of the same targets under two models, with the standard error of their ratio.

Shape legend: T = positions that have a target.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from validator.numerics.spreads import clustered_se

__all__ = ["Perplexity", "compare_perplexity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """Perplexity of the targets on both sides.

    Attributes:
        targets: how many positions have a target.
        ref, cand: perplexity on each side.
        ratio: candidate's over reference's.
        ratio_se: its standard error, clustered by sequence; None with fewer than two clusters, or
            where the ratio is infinite.
        rms_probability_change: root mean square of the change of the target's probability.
    """

    targets: int
    ref: float
    cand: float
    ratio: float
    ratio_se: float | None
    rms_probability_change: float


def compare_perplexity(*, nll_ref: Tensor, nll_cand: Tensor, groups: Tensor | None) -> Perplexity | None:
    """Compare the mean negative log-likelihoods of both sides, pairwise.

    Args:
        nll_ref: `[T]` float64, finite.
        nll_cand: `[T]` float64; +inf where the candidate gives the target no probability.
        groups: `[T]` integer, the sequence of each position, whose errors may be correlated; None
            takes every position for independent.

    Returns:
        The figures, or None where T is 0.

    Source:
        The clustered standard error of the mean difference (see `clustered_se`), carried over to the ratio by
        the delta method. Change of the target's probability: as llama.cpp's perplexity tool reports it.
    """
    targets = nll_ref.numel()
    if targets == 0:
        return None
    difference = nll_cand - nll_ref
    change = (-nll_cand).exp() - (-nll_ref).exp()
    ratio = _exp(float(difference.mean()))
    se = clustered_se(difference, groups)
    return Perplexity(
        targets=targets,
        ref=_exp(float(nll_ref.mean())),
        cand=_exp(float(nll_cand.mean())),
        ratio=ratio,
        ratio_se=None if se is None or math.isinf(ratio) else ratio * se,
        rms_probability_change=float(change.square().mean().sqrt()),
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
