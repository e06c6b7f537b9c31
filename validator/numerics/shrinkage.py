"""Sigma from a few stochastic runs: each element's own variance, shrunk towards that of its row.

Shape legend: * = any shape; its last dim is a row.
"""

import torch
from torch import Tensor

__all__ = ["SHRINKAGE", "shrunk_sigma"]

SHRINKAGE = 8
"""Weight of the row's mean, in runs: NUMERICS section 4."""


def shrunk_sigma(variance: Tensor, unit: Tensor, runs: int) -> Tensor:
    """Return the standard deviation from variances that a few runs measured.

    Args:
        variance: `[*]` float64, mean square of the errors of `runs` runs.
        unit: `[*]` float64, the size that an element's error is measured in before it is averaged with those
            of its row: its ulp, where errors grow with the values.
        runs: how many runs.

    Returns:
        `[*]` float64. NaN counts as no error, in units of 1. An infinite variance stays infinite, and the
        mean of its row is that of the others.

    Source:
        `(K s_i^2 + 8 mean) / (K + 8)`, NUMERICS section 4.
    """
    unit = unit.nan_to_num(nan=1.0)
    relative = variance / unit.square()
    relative = relative.masked_fill(relative.isnan(), 0.0)
    is_finite = relative.isfinite()
    total = relative.masked_fill(~is_finite, 0.0).sum(-1, keepdim=True) if relative.dim() else relative
    mean = total / is_finite.sum(-1, keepdim=True).clamp_min(1) if relative.dim() else total
    return torch.sqrt((runs * relative + SHRINKAGE * mean) / (runs + SHRINKAGE)) * unit
