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
        `[*]` float64. NaN counts as no error, in units of 1.

    Source:
        `(K s_i^2 + 8 mean) / (K + 8)`, NUMERICS section 4.
    """
    unit = unit.nan_to_num(nan=1.0)
    relative = (variance / unit.square()).nan_to_num(nan=0.0)
    mean = relative.mean(-1, keepdim=True) if relative.dim() else relative
    return torch.sqrt((runs * relative + SHRINKAGE * mean) / (runs + SHRINKAGE)) * unit
