"""Layouts that are no order along one dim: transposed, rows that are each in an order, scales of blocks.

Shape legend: * = the edge's shape.
"""

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures import Subject, residual_ulp
from validator.checks.slices import CLEARLY, MINIMUM_MOVED
from validator.numerics.ulp import ulp

__all__ = ["exchanged_scales", "held", "transposed", "unordered"]

PROBED = 2**12
"""So many elements refute a correction."""
SCALED = (16, 32, 64, 128, 256)
"""Quantised matrices have a scale for each square block of one of these sizes."""
SCALE_ERROR = 2.0**-10
"""How far a block's fitted scale may be off: its elements were rounded on each side."""
UNORDERED = 16
"""Rows of up to so many elements may each have an order of their own."""


def transposed(subject: Subject) -> Signature | None:
    """Look for the last two dims in the other's place."""
    shape = subject.exact.shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return None
    allowed = subject.allowed.expand(shape).mT
    left = _clear(subject, subject.exact.mT, allowed)
    if left is None:
        return None
    parameters = {"dim": "the last two", "is": "transposed", "should_be": "as the reference's"}
    return Signature(kind="layout", parameters=parameters, residual_ulp=left)


def unordered(subject: Subject) -> Signature | None:
    """Look for short rows that each have an order of their own, as those of an unordered top-k."""
    size = subject.exact.shape[-1]
    if not 2 <= size <= UNORDERED or not bool(subject.usable.all()):
        return None
    # The k-th largest of each goes where the candidate has its k-th largest.
    ranks = subject.cand.argsort(-1).argsort(-1)
    order = subject.exact.argsort(-1).gather(-1, ranks)
    allowed = subject.allowed.expand(subject.exact.shape).gather(-1, order)
    left = _clear(subject, subject.exact.gather(-1, order), allowed)
    if left is None:
        return None
    parameters = {"dim": "the last", "is": "each row in an order of its own", "should_be": "in order"}
    return Signature(kind="layout", parameters=parameters, residual_ulp=left)


def exchanged_scales(subject: Subject) -> Signature | None:
    """Look for a matrix whose blocks were multiplied by each other's scales, as by transposed ones.

    Then the block in row i and column j is too large by as much as that in row j and column i is too small.
    """
    shape = subject.exact.shape
    if len(shape) != 2 or shape[0] != shape[1] or not bool(subject.usable.all()):
        return None
    for size in SCALED:
        if shape[0] % size or shape[0] == size:
            continue
        blocks = [
            values.unflatten(0, (-1, size)).unflatten(2, (-1, size))
            for values in (subject.exact, subject.cand)
        ]
        ratio = (blocks[0] * blocks[1]).sum((1, 3)) / blocks[0].square().sum((1, 3))
        is_exchanged = (ratio * ratio.T - 1).abs() < 2 * subject.fmt.unit_roundoff + SCALE_ERROR
        if not bool((is_exchanged & (ratio > 0)).all()):
            continue
        whole = ratio.repeat_interleave(size, 0).repeat_interleave(size, 1)
        left = _clear(subject, subject.exact * whole, subject.allowed * whole.abs().clamp_min(1.0))
        if left is not None:
            parameters = {
                "dim": "both dims",
                "is": f"scales of blocks of {size} transposed",
                "should_be": "each block's own scale",
            }
            return Signature(kind="layout", parameters=parameters, residual_ulp=left)
    return None


def held(subject: Subject, exact: Tensor, allowed: Tensor, known: Tensor | None = None) -> float | None:
    """Return what stays after a correction, in ulp, or None where some of it is outside of the band."""
    usable = subject.judged & exact.isfinite() & subject.cand.isfinite()
    usable = usable if known is None else usable & known
    spacing, error = ulp(exact, subject.fmt), (subject.cand - exact).abs()
    if not bool(usable.any()) or bool((usable & (error > allowed + spacing / 2)).any()):
        return None
    return residual_ulp(error[usable], spacing[usable])


def _clear(subject: Subject, exact: Tensor, allowed: Tensor) -> float | None:
    """Return what stays after a correction, or None where it does not hold or another might as well."""
    if not _is_near(subject, exact, allowed):
        return None
    moved = (exact != subject.exact) & subject.usable
    count = int(moved.sum())
    if count < MINIMUM_MOVED:
        return None
    left = held(subject, exact, allowed)
    error = (subject.cand - subject.exact)[moved].square().sum()
    slack = CLEARLY * allowed.expand(exact.shape)[moved].square().sum()
    after = CLEARLY * (subject.cand - exact)[moved].square().sum()
    return left if left is not None and bool(error > torch.maximum(slack, after)) else None


def _is_near(subject: Subject, exact: Tensor, allowed: Tensor) -> bool:
    """Refute a correction by a few elements."""
    step = max(1, exact.numel() // PROBED)
    cand, exact, allowed, usable = (
        values.expand(exact.shape).reshape(-1)[::step]
        for values in (subject.cand, exact, allowed, subject.usable)
    )
    return not bool((usable & ((cand - exact).abs() > allowed + ulp(exact, subject.fmt))).any())
