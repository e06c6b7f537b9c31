"""Perplexity of the same targets under two models, with the standard error of their ratio.

Shape legend: T = positions that have a target.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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
    """

    targets: int
    ref: float
    cand: float
    ratio: float
    ratio_se: float | None


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
        Variance of a mean clustered by sequence: Liang and Zeger, Biometrika 73 (1986), with the factor
        G/(G-1) for G clusters; carried over to the ratio by the delta method.
    """
    targets = nll_ref.numel()
    if targets == 0:
        return None
    difference = nll_cand - nll_ref
    mean = float(difference.mean())
    ratio = _exp(mean)
    return Perplexity(
        targets=targets,
        ref=_exp(float(nll_ref.mean())),
        cand=_exp(float(nll_cand.mean())),
        ratio=ratio,
        ratio_se=None if math.isinf(ratio) else _clustered_se(difference - mean, ratio, groups),
    )


def _clustered_se(residual: Tensor, ratio: float, groups: Tensor | None) -> float | None:
    sums = residual
    if groups is not None:
        names, member = torch.unique(groups, return_inverse=True)
        sums = torch.zeros(names.numel(), dtype=residual.dtype, device=residual.device)
        sums.index_add_(0, member, residual)
    clusters = sums.numel()
    if clusters < 2:
        return None
    variance_of_mean = float(sums.square().sum()) * clusters / (clusters - 1) / residual.numel() ** 2
    return ratio * math.sqrt(variance_of_mean)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
