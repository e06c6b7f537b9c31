"""The search for what kind of fault an edge shows: hypotheses in order, the simplest first."""

from collections.abc import Callable
from dataclasses import replace

from validator.checks.findings import Signature
from validator.checks.signatures.constants import bias_missing, bias_per_rank, constant_vector
from validator.checks.signatures.formats import narrower_format, truncation
from validator.checks.signatures.limits import clamp, not_finite, zeros
from validator.checks.signatures.reductions import counted_terms, scaled_reduction
from validator.checks.signatures.regions import find_region
from validator.checks.signatures.scaling import factor, rough_factor, sign
from validator.checks.signatures.shifts import shifted
from validator.checks.signatures.subject import Subject

__all__ = ["edge_signature"]

Hypothesis = Callable[[Subject], Signature | None]

WHOLE: tuple[Hypothesis, ...] = (
    bias_per_rank,
    bias_missing,
    counted_terms,
    scaled_reduction,
    truncation,
    sign,
    factor,
    constant_vector,
    clamp,
    narrower_format,
)
"""Of the whole edge, element by element or row by row; each is refuted on a part of a large edge."""

INNER: tuple[Hypothesis, ...] = (sign, factor, narrower_format, rough_factor)
"""Of a region of the edge, the rest of which is right."""


def edge_signature(subject: Subject) -> Signature | None:
    """Look for a correction of the oracle's values that makes the candidate agree.

    Args:
        subject: the edge.

    Returns:
        The first hypothesis that holds; `residual_ulp` is what stays after its correction.

        - Of the whole edge: `bias_per_rank`, `bias_missing`, `missing_reduction`, `double_reduction`,
          `mixed_reduction`, `truncation`, `sign`, `factor`, `constant_vector`, `clamp`, `saturation`,
          `narrower_format`.
        - Of elements and rows: `zeros`, `shifted`.
        - Of a region, named in `within`: `sign`, `factor`, `narrower_format`.
        - Of elements that are no numbers, where nothing else is off: `overflow`, `not_finite`.

        None where nothing holds.
    """
    if not bool(subject.outside.any()):
        return not_finite(subject)
    part = subject.thinned()
    for hypothesis in WHOLE:
        found = hypothesis(part)
        if found is not None and part is not subject:
            found = hypothesis(subject)
        if found is not None:
            return found
    return zeros(subject) or shifted(subject) or _in_region(subject)


def _in_region(subject: Subject) -> Signature | None:
    """Look for a correction of the region alone that is off."""
    region = find_region(subject, subject.outside)
    if region is None:
        return None
    inner = subject.within(region.mask)
    for hypothesis in INNER:
        found = hypothesis(inner)
        if found is not None:
            return replace(found, parameters={**found.parameters, "within": region.words})
    return None
