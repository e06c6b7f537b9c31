"""Values that were cut off, left at zero, or are no numbers.

Shape legend: * = the edge's shape.
"""

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures.regions import region_words
from validator.checks.signatures.subject import Subject
from validator.numerics.rounding import round_nearest

__all__ = ["clamp", "not_finite", "zeros"]

MINIMUM = 4
"""So many elements at one limit, at zero, or beyond a size, are no accident."""


def clamp(subject: Subject) -> Signature | None:
    """Say whether values were cut off at a limit, above, below or on both sides.

    Returns:
        `clamp` with `low` and `high` (None where that side is open), or `saturation` with `limit`, where that
        is the largest value of the candidate's own format; or None.
    """
    outside, cand, exact = subject.outside, subject.cand, subject.exact
    over, under = outside & (exact > cand), outside & (exact < cand)
    high = _limit(cand, over)
    low = _limit(cand, under)
    if (high is None) == bool(over.any()) or (low is None) == bool(under.any()):
        return None
    if low is not None and high is not None and low >= high:
        return None
    left = subject.residual(exact.clamp(low, high))
    if left is None:
        return None
    largest = subject.fmt.max
    if high in (None, largest) and low in (None, -largest):
        return Signature(kind="saturation", parameters={"limit": largest}, residual_ulp=left)
    return Signature(kind="clamp", parameters={"low": low, "high": high}, residual_ulp=left)


def zeros(subject: Subject) -> Signature | None:
    """Say whether all elements that are off are exactly zero, and where they are."""
    outside = subject.outside
    if int(outside.sum()) < MINIMUM or bool(subject.cand[outside].any()):
        return None
    left = subject.residual(torch.where(outside, 0.0, subject.exact))
    if left is None:
        return None
    return Signature(kind="zeros", parameters=_where(subject, outside), residual_ulp=left)


def not_finite(subject: Subject) -> Signature | None:
    """Say which elements are NaN or infinite where the oracle is not.

    Returns:
        `overflow` with the largest size that stayed finite (`above`), where exactly the larger ones became
        infinite; else `not_finite` with their `value` and where they are; or None.
    """
    # What is too large for the format is infinite there, and right.
    rounded = round_nearest(subject.exact, subject.fmt)
    bad = subject.judged & rounded.isfinite() & ~subject.cand.isfinite()
    if not bool(bad.any()):
        return None
    values = subject.cand[bad]
    size = subject.exact.abs()
    if int(bad.sum()) >= MINIMUM and bool(values.isinf().all()) and bool(subject.usable.any()):
        above = float(size[subject.usable].max())
        if float(size[bad].min()) > above:
            return Signature(kind="overflow", parameters={"above": above})
    value = "nan" if bool(values.isnan().all()) else "inf" if bool(values.isinf().all()) else "nan and inf"
    return Signature(kind="not_finite", parameters={"value": value} | _where(subject, bad))


def _limit(cand: Tensor, cut: Tensor) -> float | None:
    """Return the one value that all elements which were cut have, or None."""
    values = cand[cut]
    return float(values[0]) if len(values) >= MINIMUM and bool((values == values[0]).all()) else None


def _where(subject: Subject, guilty: Tensor) -> dict[str, str]:
    words = region_words(subject, guilty)
    return {} if words is None else {"within": words}
