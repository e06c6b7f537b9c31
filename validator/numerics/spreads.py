"""A figure over many positions: its mean, percentiles and maximum, the error of the mean, and its JSON.

Shape legend: N = positions.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Spread", "clustered_se", "jsonable", "spread_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over all positions; each percentile is a value that some position really has."""

    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


def spread_of(values: Tensor) -> Spread:
    """Summarise `[N]` float64 values, N at least 1, infinities included, by nearest ranks."""
    ordered = values.sort().values

    def percentile(fraction: float) -> float:
        # The nearest rank: interpolation would make NaN of two infinities.
        return float(ordered[max(math.ceil(fraction * ordered.numel()) - 1, 0)])

    return Spread(
        mean=float(values.mean()),
        p50=percentile(0.5),
        p90=percentile(0.9),
        p99=percentile(0.99),
        p999=percentile(0.999),
        max=float(ordered[-1]),
    )


def clustered_se(values: Tensor, groups: Tensor | None) -> float | None:
    """Estimate the standard error of the mean of values that are correlated within groups.

    Args:
        values: `[N]` float64.
        groups: `[N]` integer, the group of each value, such as its sequence; None takes every value for
            independent of all others.

    Returns:
        The standard error, or None with fewer than two groups or where a value is not finite.

    Source:
        Variance of a mean clustered by group: Liang and Zeger, "Longitudinal data analysis using generalized
        linear models", Biometrika 73 (1986), with the factor G/(G-1) for G groups.
    """
    residual = values - values.mean()
    sums = residual
    if groups is not None:
        names, member = torch.unique(groups, return_inverse=True)
        sums = torch.zeros(names.numel(), dtype=residual.dtype, device=residual.device)
        sums.index_add_(0, member, residual)
    clusters = sums.numel()
    if clusters < 2 or not bool(values.isfinite().all()):
        return None
    variance = float(sums.square().sum()) * clusters / (clusters - 1) / residual.numel() ** 2
    return math.sqrt(variance)


def jsonable(value: Any) -> Any:
    """Return dicts, tuples and numbers in JSON's types; infinity and NaN become `"inf"` and `"nan"`."""
    if isinstance(value, dict):
        return {name: jsonable(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [jsonable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
