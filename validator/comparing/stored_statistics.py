"""The verdict on a tensor of which one side kept statistics alone.

A healthy candidate is one more of the runs that the noise was measured by: its errors e have the standard
deviations sigma, and may all go the same way, since they come from the same tensors before. Then its mean is
off by as much as mean(sigma) in one standard deviation, and its root mean square by rms(sigma); an extreme
by what one element may be. To these comes the rounding of each element to be stored, u |y| at most. A fault
passes unless it moves the whole tensor by more than that: agreement says little, and is never `aligned`.
"""

import math
from collections.abc import Iterator, Sequence

from validator.capturing.records import Statistics
from validator.checks.findings import Arm, Evidence
from validator.numerics.formats import Format

__all__ = ["STATISTICS_A_TENSOR", "class_in_words", "judge_statistics", "may_overflow"]

STATISTICS_A_TENSOR = 4
"""Mean, root mean square and both extremes."""


def judge_statistics(
    *,
    ref: Statistics,
    cand: Statistics,
    noise: Statistics,
    fmt: Format,
    multiplier: float,
    of_elements: float,
    shape: Sequence[int],
    dims: Sequence[str],
) -> tuple[Arm | None, Evidence, str]:
    """Judge the statistics of a tensor.

    Args:
        ref: the reference's.
        cand: the candidate's.
        noise: of the standard deviations of a candidate's elements around the reference's.
        fmt: the candidate's format.
        multiplier: so many standard deviations a statistic may be off.
        of_elements: so many an element may be off.
        shape: of the tensor.
        dims: meaning of each dim.

    Returns:
        The rule that fired or None, the figures, and what is off in words.
    """
    evidence = Evidence(shape=tuple(shape), dims=tuple(dims), elements=math.prod(shape))
    if (ref.nan, ref.inf) != (cand.nan, cand.inf):
        if may_overflow(ref, noise, fmt, of_elements):
            return None, evidence, ""
        return Arm.CLASS, evidence, class_in_words(cand)
    if math.isnan(ref.rms):
        return None, evidence, ""
    worst, what, values = 0.0, "", (math.nan, math.nan)
    for name, theirs, ours, allowed in _bounds(ref, cand, noise, fmt, multiplier, of_elements):
        apart = abs(theirs - ours)
        ratio = 0.0 if apart == 0 else apart / allowed if allowed else math.inf
        if ratio > worst:
            worst, what, values = ratio, name, (theirs, ours)
    evidence = Evidence(
        max_over_band=worst,
        reference=values[0],
        candidate=values[1],
        shape=tuple(shape),
        dims=tuple(dims),
        elements=math.prod(shape),
    )
    return (Arm.MAX if worst > 1 else None), evidence, f"its {what} is off"


def _bounds(
    ref: Statistics, cand: Statistics, noise: Statistics, fmt: Format, multiplier: float, of_elements: float
) -> Iterator[tuple[str, float, float, float]]:
    u, least = fmt.unit_roundoff, fmt.unit_roundoff * 2.0**fmt.e_min
    stored = u * ref.rms + least
    yield "mean", ref.mean, cand.mean, multiplier * noise.mean + stored
    yield "root mean square", ref.rms, cand.rms, multiplier * noise.rms + stored
    extreme = of_elements * noise.max + u * max(abs(ref.min), abs(ref.max)) + least
    yield "smallest element", ref.min, cand.min, extreme
    yield "largest element", ref.max, cand.max, extreme


def class_in_words(cand: Statistics) -> str:
    """Say how many NaN and infinities a tensor has."""
    return f"it has {cand.nan} NaN and {cand.inf} infinities"


def may_overflow(ref: Statistics, noise: Statistics, fmt: Format, of_elements: float) -> bool:
    """Say whether rounding alone may make NaN or infinities of a tensor's elements.

    Args:
        ref: the reference's.
        noise: of the standard deviations of a candidate's elements around the reference's.
        fmt: the candidate's format.
        of_elements: so many an element may be off.
    """
    if ref.inf or math.isnan(ref.rms):
        return True
    return max(abs(ref.min), abs(ref.max)) + of_elements * noise.max >= fmt.max / 2
