"""A judged edge's values side by side: the oracle's, the candidate's, and how far apart they may be.

Shape legend: * = the edge's shape.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.align.traces import LogicalTensor, Part
from validator.checks.judge import Band, Bench, as_cast_by_device, class_differs
from validator.numerics.formats import format_of
from validator.numerics.ulp import ulp

__all__ = ["EdgeValues", "values_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeValues:
    """The values of one judged edge.

    Attributes:
        exact: `[*]` float64, the oracle's.
        cand: `[*]` float64, the candidate's.
        allowed: `[*]` float64, how far apart they may be: 0 where nothing is computed, so that any difference
            is a fault; NaN where rounding decides a value altogether; inf where nothing is judged.
        dtype: the candidate's own.
        ulp: `[*]` float64, the spacing of the candidate's format; None for integers and booleans.
        is_other_class: `[*]` boolean, where one value is NaN, infinite or saturated and the other is not.
        judged: `[*]` boolean, or None for all.
        dims: meaning of each dim.
        parts: which rank held which part.
        is_exact: whether nothing is computed, so that any difference is a fault.
    """

    exact: Tensor
    cand: Tensor
    allowed: Tensor
    dtype: torch.dtype
    ulp: Tensor | None
    is_other_class: Tensor
    judged: Tensor | None
    dims: tuple[str, ...]
    parts: tuple[Part, ...]
    is_exact: bool

    def is_judged(self) -> Tensor:
        """Return `[*]` boolean, which elements are judged."""
        everywhere = torch.ones(self.exact.shape, dtype=torch.bool)
        return everywhere if self.judged is None else self.judged.expand(self.exact.shape)

    def error(self) -> Tensor:
        """Measure the error of each element.

        Returns:
            `[*]` float64: over what is allowed; where that is nothing, in ulp, or as it is for integers. inf
            for a value of another class; 0 where rounding decides everything; NaN where nothing is judged.
        """
        scale = self.allowed
        if self.is_exact:
            scale = torch.ones_like(self.exact) if self.ulp is None else self.ulp
        difference = self.cand - self.exact
        error = torch.where(difference.isfinite(), difference.abs() / scale, 0.0)
        error = error.nan_to_num(0.0, posinf=math.inf).masked_fill(self.is_other_class, math.inf)
        return error.masked_fill(~self.is_judged(), math.nan)


def values_of(
    *,
    exact: Tensor,
    cand: LogicalTensor,
    band: Band | None,
    judged: Tensor | None,
    bench: Bench,
) -> EdgeValues:
    """Put the two sides of an edge next to one another.

    Args:
        exact: `[*]` what the candidate is held to: float64, or integer or boolean.
        cand: the candidate's edge.
        band: what rounding explains; None where nothing is computed.
        judged: `[*]` boolean, or None for all.
        bench: what is common to the run.
    """
    y, c = exact.to(torch.float64), cand.data.to(torch.float64)
    spacing, allowed = None, torch.zeros_like(y)
    if cand.data.is_floating_point():
        spacing = ulp(y, format_of(cand.data.dtype))
    if band is None or spacing is None:
        is_alike = (c == y) | (c.isnan() & y.isnan())
        is_other_class = ~is_alike & ~(c.isfinite() & y.isfinite())
    else:
        fmt = format_of(cand.data.dtype)
        slack = band.bound + bench.multiplier(band) * band.sigma
        allowed = spacing / 2 + slack
        y = as_cast_by_device(y, c, fmt, spacing)
        is_other_class = class_differs(y, c, fmt, spacing, torch.as_tensor(slack, dtype=torch.float64))
    if judged is not None:
        allowed = allowed.masked_fill(~judged, math.inf)
    return EdgeValues(
        exact=y,
        cand=c,
        allowed=allowed,
        dtype=cand.data.dtype,
        ulp=spacing,
        is_other_class=is_other_class,
        judged=judged,
        dims=cand.dims,
        parts=cand.parts,
        is_exact=band is None,
    )
