"""Divergences between two probability distributions, from their logarithms.

Shape legend: V = entries of a distribution, ... = any leading dims.
"""

import math

import torch
from torch import Tensor

__all__ = ["js_divergence", "kl_divergence", "kl_terms", "total_variation"]


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute KL(p || q) along the last dim without cancellation.

    With t = log q - log p it sums `p * phi(t)` where |t| < 0.05 and `q - p - p * t` elsewhere, with
    phi(t) = expm1(t) - t by its series. No term is negative; they differ from those of the
    definition, `-p * t`, by `q - p`, which sums to zero.

    Args:
        log_p: `[..., V]` float64, normalised log-probabilities; -inf where p is zero.
        log_q: `[..., V]` float64, the same of the other side.

    Returns:
        `[...]` float64 in nats, never negative; +inf where p > 0 and q's logarithm is -inf for some
        entry, NaN where an input holds NaN, 0 for V = 0.

    Source:
        The Bregman form of the divergence, the sum of q - p + p log(p/q).
    """
    return kl_terms(log_p, log_q).sum(dim=-1)


def kl_terms(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute `q - p + p log(p / q)` element by element: KL before the sum, for any positive p and q.

    Args:
        log_p: `[...]` float64, logarithms, which need not be those of a distribution; -inf where p is zero.
        log_q: `[...]` float64, the same of the other side.

    Returns:
        `[...]` float64, never negative, 0 only where both are equal; q where p is zero, +inf where only q is.

    Source:
        The Bregman divergence of x log x.
    """
    p, q = log_p.exp(), log_q.exp()
    t = log_q - log_p
    # phi(t) = t^2 (1/2! + t/3! + ... + t^9/11!): at 0.05 what is left out is below 2^-60 of the sum.
    series = torch.zeros_like(t)
    for power in range(11, 1, -1):
        series.mul_(t).add_(1 / math.factorial(power))
    near = series.mul_(t).mul_(t).mul_(p)
    far = (q - p).addcmul_(p, t, value=-1).clamp_min_(0.0)
    terms = torch.where(t.abs() < 0.05, near, far)
    return torch.where(p == 0, q, terms)


def js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence along the last dim.

    Args:
        log_p: `[..., V]` float64, normalised log-probabilities; -inf where p is zero.
        log_q: `[..., V]` float64, the same of the other side.

    Returns:
        `[...]` float64 in nats, from 0 to ln 2; NaN where an input holds NaN.

    Source:
        Lin, "Divergence measures based on the Shannon entropy", IEEE Trans. Information Theory 37 (1991).
    """
    log_middle = torch.logaddexp(log_p, log_q) - math.log(2)
    return (kl_divergence(log_p, log_middle) + kl_divergence(log_q, log_middle)) / 2


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute half the L1 distance along the last dim.

    Args:
        log_p: `[..., V]` float64, normalised log-probabilities; -inf where p is zero.
        log_q: `[..., V]` float64, the same of the other side.

    Returns:
        `[...]` float64, from 0 to 1; NaN where an input holds NaN.
    """
    return (log_q.exp() - log_p.exp()).abs().sum(dim=-1) / 2
