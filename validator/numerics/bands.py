"""How far rounding can carry a result: analytic rows of NUMERICS section 4.

Each row gives the standard deviation (sigma) of what float32 arithmetic inside an operator adds to
its result, before the one rounding to the storage format, and where it applies a hard bound
(beta) on coherent errors. A result is explained when
`|candidate - y64| <= ulp(y64)/2 + beta + lambda*sigma`.

Shape legend: K = contracted channels, M = output channels, * = any shape.
"""

import math

import torch
from torch import Tensor

__all__ = [
    "ALPHA",
    "U32",
    "UNDERFLOW",
    "C",
    "matmul_sigma",
    "normal_lambda",
    "softmax_sigma",
    "tail_lambda",
]

ALPHA = 1e-3
"""Probability of a false alarm of the MAX rule in a whole healthy run."""

C = 0.43
"""Mean over a binade of (standard deviation of one rounding to nearest) / (u |v|)."""

U32 = 2.0**-24
UNDERFLOW = 2.0**-150
"""Half the smallest float32 subnormal: gradual underflow, for each float32 term."""


def normal_lambda(elements: int, alpha: float = ALPHA) -> float:
    """Return how many sigmas the largest of `elements` normal errors exceeds with probability `alpha`.

    Source:
        `sqrt(2 ln(2 N / alpha))`: the tail bound `P(|x| > t) <= 2 exp(-t^2 / 2)` and a union bound.
    """
    return math.sqrt(2 * math.log(2 * max(elements, 1) / alpha))


def tail_lambda(elements: int, alpha: float = ALPHA) -> float:
    """Return lambda for float32 sums, whose errors have exponential tails.

    Source:
        `max(lambda, 0.45 ln(2 N / alpha))`, NUMERICS section 4.
    """
    return max(normal_lambda(elements, alpha), 0.45 * math.log(2 * max(elements, 1) / alpha))


def matmul_sigma(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Return sigma of a matrix product with float32 accumulation in unknown order.

    Args:
        x: `[*, K]` float64.
        w: `[*, K, M]` float64.
        y: `[*, M]` float64, the exact product; a bias, which is added last, may be in it.

    Returns:
        `[*, M]` float64.

    Source:
        `0.43 u sqrt(m/2 sum_j a_j^2 + m/3 y^2)` with `m = K`; Higham and Mary (2019).
    """
    k = x.shape[-1]
    variance = torch.matmul(x.square(), w.square()).mul_(k / 2)
    variance.add_(y.square(), alpha=k / 3)
    return variance.clamp_min_(0).sqrt_().mul_(C * U32).add_(UNDERFLOW * k)


def softmax_sigma(scores: Tensor, p: Tensor, *, dim: int, score_error: Tensor | float = 0.0) -> Tensor:
    """Return sigma of a softmax in float32.

    Args:
        scores: `[*]` float64; minus infinity where masked.
        p: `[*]` float64, the exact probabilities.
        dim: dim that sums to one.
        score_error: `[*]` standard deviation of the scores' own error.

    Returns:
        `[*]` float64.

    Source:
        Blanchard, Higham and Higham (2021), in NUMERICS section 4: `p_i sqrt(ds_i^2 + sum_j p_j^2 ds_j^2)`,
        `ds = 0.43 u 3 (1 + max(|s|, |s - s_max|)) + score_error`, and `0.43 u sqrt(n/12) p_i` for the sum.
    """
    finite = scores.masked_fill(scores == -math.inf, 0.0)
    magnitude = torch.maximum(finite.abs(), (finite - finite.amax(dim, keepdim=True)).abs())
    ds = C * U32 * 3 * (1 + magnitude) + score_error
    shared = (p * ds).square().sum(dim, keepdim=True)
    n = scores.shape[dim]
    return p * torch.sqrt(ds.square() + shared) + C * U32 * math.sqrt(n / 12) * p + 2.0**-149
