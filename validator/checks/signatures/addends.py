"""A tensor that a module adds, left out or added too often: a residual, what a child returned.

Shape legend: * = the edge's shape.
"""

from collections.abc import Mapping

from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures.subject import Subject
from validator.numerics.ulp import ulp

__all__ = ["miscounted_addend"]

WHOLE = 0.1
"""How far a fitted multiple may be from a whole number."""

MOST = 64
"""More often than a run has ranks, nothing is added by mistake."""


def miscounted_addend(subject: Subject, addends: Mapping[str, Tensor]) -> Signature | None:
    """Say which tensor is in the candidate more or less often than in the oracle.

    Args:
        subject: the edge.
        addends: `[*]` float64 tensors that the module may add, by name: inputs, and what children returned.

    Returns:
        `missing_addend` (with its name in `of`; it is not there, where the oracle has it once) or
        `repeated_addend` (with `of`, and how many `times` more than in the oracle), or None.
    """
    usable = subject.usable
    spacing = ulp(subject.exact, subject.fmt)[usable]
    difference = (subject.cand - subject.exact)[usable] / spacing
    for name, addend in addends.items():
        if addend.shape != subject.exact.shape:
            continue
        scaled = addend[usable] / spacing
        power = float(scaled.square().sum())
        if not 0 < power < float("inf"):
            continue
        fitted = float((difference * scaled).sum()) / power
        whole = round(fitted)
        if whole == 0 or whole < -1 or whole > MOST or abs(fitted - whole) > WHOLE:
            continue
        left = subject.residual(subject.exact + whole * addend, slack=2.0)
        if left is not None:
            kind = "missing_addend" if whole < 0 else "repeated_addend"
            parameters = {"of": name} | ({"times": whole} if whole > 0 else {})
            return Signature(kind=kind, parameters=parameters, residual_ulp=left)
    return None
