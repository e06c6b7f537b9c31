"""How much a set has to show to explain a divergence, and whether there is one to explain."""

import math

from validator.errors import UsageError

__all__ = ["check_limit", "default_limit"]

MOST = 0.9
"""At least a tenth of a divergence may be missing: parts act on each other, and noise is in all of them."""

LEAST = 0.5
"""A set that shows less than half of a divergence leaves more than it explains."""


def default_limit(*, whole: float, baseline: float, noise: float) -> float:
    """Return the value that explains a divergence: all that noise does not, from a half to nine tenths of it.

    Half of it alone would blame one of two modules that spoil it equally.

    Args:
        whole: value of the whole candidate, above `baseline`.
        baseline: value of no part.
        noise: the value up to which noise explains it; 0 where that is not known.
    """
    rise = whole - baseline
    if math.isinf(rise):
        return whole
    return baseline + min(max(whole - max(noise, baseline), LEAST * rise), MOST * rise)


def check_limit(limit: float | None) -> None:
    """Raise `UsageError` for a `--limit` that no divergence can reach, or any."""
    if limit is not None and not 0 < limit < math.inf:
        raise UsageError(f"--limit {limit!r}: give a positive number in the unit of the metric")
