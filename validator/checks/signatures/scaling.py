"""Everything multiplied by one number: a factor, or another sign.

Shape legend: * = the edge's shape.
"""

from validator.checks.findings import Signature
from validator.checks.signatures.subject import Subject, residual_ulp
from validator.numerics.ulp import ulp

__all__ = ["MINIMUM_RATIOS", "factor", "rough_factor", "sign"]

MINIMUM_RATIOS = 8
"""Fewer elements in one ratio are no evidence of a factor."""

FIT = 0.9
"""Share of the candidate's squares that its factor times the oracle has: beside the oracle's band, any small
value is near to a small factor."""


ROUGH = 0.05
"""Share of the squared error that a factor may leave which was multiplied in before other roundings."""


def sign(subject: Subject) -> Signature | None:
    """Say whether the sign was flipped."""
    left = subject.residual(-subject.exact)
    return None if left is None else Signature(kind="sign", parameters={"factor": -1.0}, residual_ulp=left)


def factor(subject: Subject) -> Signature | None:
    """Say whether all elements are off by one factor, other than 0."""
    fitted = _fitted(subject)
    if fitted is None:
        return None
    # A value may have been rounded before it was multiplied.
    left = subject.residual(fitted * subject.exact, slack=1 + max(abs(fitted), 1.0))
    if left is None:
        return None
    return Signature(kind="factor", parameters={"factor": fitted}, residual_ulp=left)


def rough_factor(subject: Subject) -> Signature | None:
    """Say whether one factor explains nearly all of the difference, such as one on rounded weights."""
    fitted = _fitted(subject)
    if fitted is None:
        return None
    usable = subject.usable
    before = (subject.cand - subject.exact)[usable]
    left = (subject.cand - fitted * subject.exact)[usable]
    if left.square().sum() > ROUGH * before.square().sum():
        return None
    spacing = ulp(subject.exact, subject.fmt)[usable]
    residual = residual_ulp(left, spacing)
    return Signature(kind="factor", parameters={"factor": fitted}, residual_ulp=residual)


def _fitted(subject: Subject) -> float | None:
    """Return the least-squares factor, or None where elements are few, zero, or have none in common."""
    y, c = subject.exact[subject.usable], subject.cand[subject.usable]
    power = float((y * y).sum())
    if len(y) < MINIMUM_RATIOS or power == 0 or not bool(c.any()):
        return None
    fitted = float((y * c).sum()) / power
    return fitted if fitted**2 * power >= FIT * float((c * c).sum()) else None
