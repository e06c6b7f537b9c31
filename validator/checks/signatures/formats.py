"""Rounding of another kind: to a narrower format than values are stored in, or toward zero.

Shape legend: * = the edge's shape.
"""

import math

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures.subject import Subject
from validator.numerics.contractions import TF32
from validator.numerics.formats import FORMATS
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = ["narrower_format", "truncation"]

NARROW = (
    FORMATS["float4_e2m1"],
    FORMATS["float8_e5m2"],
    FORMATS["float8_e4m3fn"],
    FORMATS["bfloat16"],
    FORMATS["float16"],
    TF32,
)
"""Tried from the fewest significant bits up."""

UNTRIVIAL = 16
"""Values whose significand is not one bit: so many that fit a narrower format are no accident.

One that fits by chance has at least one more bit that is zero: 2^-16 at most, for all.
"""

ELEMENTS = 512
"""Fewer elements do not tell truncation from rounding."""

GAIN = (-0.9, -0.4)
"""Gain of truncation in unit roundoffs: -0.64 for evenly spread significands, -0.5 to -0.75 for any one."""

QUIET = 0.25
"""Noise before the last rounding, in ulp, up to which the direction of that rounding shows."""


def narrower_format(subject: Subject) -> Signature | None:
    """Say whether all values fit a narrower format, and are the oracle's rounded to it.

    Returns:
        `narrower_format` with its `format` and the `rounding` (`nearest` or `toward_zero`), or None.
    """
    values = subject.cand[subject.usable]
    significands = torch.frexp(values)[0].abs()
    if int(((significands != 0.5) & (significands != 0)).sum()) < UNTRIVIAL or len(values.unique()) < 8:
        return None
    for fmt in NARROW:
        if fmt.precision >= subject.fmt.precision or not bool((round_nearest(values, fmt) == values).all()):
            continue
        exact = subject.exact.clamp(-fmt.max, fmt.max)
        spacing = ulp(exact, fmt)
        for rounding, corrected in (
            ("nearest", exact),
            ("toward_zero", exact - exact.sign() * torch.minimum(spacing, exact.abs()) / 2),
        ):
            left = subject.residual(corrected, inexact=spacing / 2)
            if left is not None:
                parameters = {"format": fmt.name, "rounding": rounding}
                return Signature(kind="narrower_format", parameters=parameters, residual_ulp=left)
    return None


def truncation(subject: Subject) -> Signature | None:
    """Say whether the last rounding was toward zero.

    Every error then points to zero and is up to one ulp, which makes a gain of about -0.65 unit roundoffs.

    Returns:
        `truncation` with the `gain` and the `correlation` of the error with the output, or None.
    """
    chosen = subject.usable & (subject.exact.abs() > subject.fmt.min_normal)
    y, c, allowed = subject.exact[chosen], subject.cand[chosen], subject.allowed[chosen]
    if len(y) < ELEMENTS:
        return None
    spacing = ulp(y, subject.fmt)
    noise = (allowed / spacing - 0.5).clamp_min(0)
    if float(noise.median()) > QUIET:
        return None
    error = (c - y) * y.sign() / spacing
    if bool((error > noise).any()) or bool((error < -1 - noise).any()):
        return None
    relative = (c - y) / spacing
    gain = float((relative * (y / spacing)).sum() / (y / spacing).square().sum())
    if not GAIN[0] <= gain / subject.fmt.unit_roundoff <= GAIN[1] or abs(float(error.mean()) + 0.5) > 0.1:
        return None
    parameters = {"gain": gain, "correlation": _correlation(relative, y / spacing)}
    left = float((error + 0.5).square().mean().sqrt())
    return Signature(kind="truncation", parameters=parameters, residual_ulp=left)


def _correlation(a: Tensor, b: Tensor) -> float:
    size = math.sqrt(float(a.square().sum() * b.square().sum()))
    return float((a * b).sum()) / size if size else 0.0
