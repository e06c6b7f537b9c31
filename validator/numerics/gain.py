"""The gain of a difference on its reference: the test that sees systematic faults below one ulp.

A least-squares gain averages rounding away: with n elements its standard error falls as 1/sqrt(n),
so a factor of 1.0005 on a bfloat16 tensor shows although no single element moved by an ulp. The
difficulty is an honest standard error: equal values round alike and elements of a row share errors,
so errors are clustered both ways.

Shape legend: N = judged elements, all one-dimensional.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["MINIMUM_CLUSTERS", "Gain", "gain", "normal_score", "slice_gains", "student_t"]

MINIMUM_CLUSTERS = 16.0
"""Below this effective number of clusters no standard error can be trusted, and the test abstains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A gain with its distance from zero.

    Attributes:
        gain: `g` of `d = g y`; NaN where it can't be told (no elements, or all references zero).
        z: `gain` in standard errors as a normal deviate; 0 for a gain of 0, NaN where the test abstains.
        clusters: effective number of independent clusters behind the standard error.
        error: the standard error; 0 where the gain is 0 or the test abstains.
    """

    gain: float
    z: float
    clusters: float
    error: float = 0.0

    @property
    def abstains(self) -> bool:
        """Whether the test has nothing to say."""
        return math.isnan(self.z)


def normal_score(t: Tensor | float, degrees: Tensor | float) -> Tensor:
    """Turn Student's t with `degrees` degrees of freedom into the normal deviate of equal probability.

    Source:
        Wallace, Annals of Mathematical Statistics 30 (1959): `(8v+1)/(8v+3) sqrt(v ln(1 + t^2/v))`, which is
        free of the underflow that exact tail probabilities have beyond z = 38.
    """
    t = torch.as_tensor(t, dtype=torch.float64)
    v = torch.as_tensor(degrees, dtype=torch.float64)
    return torch.sign(t) * (8 * v + 1) / (8 * v + 3) * torch.sqrt(v * torch.log1p(t.square() / v))


def student_t(score: float, degrees: float) -> float:
    """Return the t with `degrees` degrees of freedom of a normal deviate: the inverse of `normal_score`."""
    v = degrees
    scaled = score * (8 * v + 3) / (8 * v + 1)
    return math.copysign(math.sqrt(v * math.expm1(scaled**2 / v)), score)


def gain(*, difference: Tensor, reference: Tensor, weight: Tensor, rows: Tensor, values: Tensor) -> Gain:
    """Estimate the gain of a difference, with standard errors clustered by row and by value.

    Args:
        difference: `[N]` float64, candidate minus reference.
        reference: `[N]` float64.
        weight: `[N]` float64, inverse variance of an honest rounding error.
        rows: `[N]` int64, the row (token, sequence) that an element belongs to.
        values: `[N]`, what was rounded: equal values have equal rounding errors.

    Returns:
        The gain; it abstains below `MINIMUM_CLUSTERS` effective clusters.

    Source:
        NUMERICS section 5. Cluster-robust variance: Cameron, Gelbach and Miller (2011), with the larger of
        the one-way variances in place of their combination; effective number of clusters: Carter,
        Schnepel and Steigerwald (2017).
    """
    leverage = weight * reference.square()
    total = leverage.sum()
    if not total > 0:
        return Gain(gain=math.nan, z=math.nan, clusters=0.0)
    g = (weight * difference * reference).sum() / total
    if g == 0:
        return Gain(gain=0.0, z=0.0, clusters=math.inf)
    score = weight * reference * (difference - g * reference)
    variance = score.square().sum()
    clusters = math.inf
    for labels in (rows, values):
        inverse, count = _dense(labels)
        sums = torch.zeros(count, dtype=torch.float64).index_add_(0, inverse, score)
        shares = torch.zeros(count, dtype=torch.float64).index_add_(0, inverse, leverage)
        variance = torch.maximum(variance, sums.square().sum())
        clusters = min(clusters, float(total.square() / shares.square().sum()))
    if clusters < MINIMUM_CLUSTERS:
        return Gain(gain=float(g), z=math.nan, clusters=clusters)
    error = torch.sqrt(variance * clusters / (clusters - 1)) / total
    z = math.inf if error == 0 else float(normal_score(g / error, clusters - 1))
    return Gain(gain=float(g), z=math.copysign(z, float(g)), clusters=clusters, error=float(error))


def slice_gains(
    *, difference: Tensor, reference: Tensor, weight: Tensor, slices: Tensor, rows: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Estimate the gain of every slice (a channel, a head) at once.

    Args:
        difference: `[N]` float64, as in `gain`.
        reference: `[N]` float64.
        weight: `[N]` float64.
        slices: `[N]` int64 in `0..G-1`, the slice that an element belongs to.
        rows: `[N]` int64.
        values: `[N]`.

    Returns:
        `[G]` gains and `[G]` z; z is NaN where a slice abstains.
    """
    count = int(slices.max()) + 1 if slices.numel() else 0

    def per_slice(x: Tensor) -> Tensor:
        return torch.zeros(count, dtype=torch.float64).index_add_(0, slices, x)

    leverage = weight * reference.square()
    total = per_slice(leverage)
    g = per_slice(weight * difference * reference) / total
    score = weight * reference * (difference - g[slices] * reference)
    variance = per_slice(score.square())
    clusters = torch.full((count,), math.inf, dtype=torch.float64)
    for labels in (rows, values):
        inverse, size = _dense(labels)
        index, pairs = _dense(slices * size + inverse)
        owner = torch.zeros(pairs, dtype=torch.int64).index_copy_(0, index, slices)
        sums = torch.zeros(pairs, dtype=torch.float64).index_add_(0, index, score)
        shares = torch.zeros(pairs, dtype=torch.float64).index_add_(0, index, leverage)
        zeros = torch.zeros(count, dtype=torch.float64)
        variance = torch.maximum(variance, zeros.index_add(0, owner, sums.square()))
        clusters = torch.minimum(clusters, total.square() / zeros.index_add(0, owner, shares.square()))
    error = torch.sqrt(variance * clusters / (clusters - 1)) / total
    z = normal_score(g / error, clusters - 1)
    z = torch.where(g == 0, torch.zeros_like(z), z)
    return g, torch.where(clusters < MINIMUM_CLUSTERS, torch.full_like(z, math.nan), z)


def _dense(labels: Tensor) -> tuple[Tensor, int]:
    """Return labels as integers below a count that is not much larger than their number, and that count."""
    if not labels.numel():
        return labels.to(torch.int64), 0
    if not labels.is_floating_point():
        count = int(labels.max()) + 1
        if count <= 8 * labels.numel() + 65536:
            return labels, count
    unique, inverse = torch.unique(labels, return_inverse=True)
    return inverse, unique.numel()
