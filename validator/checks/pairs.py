"""The verdict on a pair of tensors without a model: does the noise that rounding carries there explain it?

Block by block, so that memory does not grow with the tensors.

Shape legend: N = elements of a block.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from scipy.special import gammaincinv
from torch import Tensor

from validator.checks.findings import Arm, Evidence
from validator.numerics.bands import normal_lambda
from validator.numerics.formats import Format
from validator.numerics.ulp import ulp
from validator.sharding.stream import BlockReader

__all__ = ["PairJudge", "noise_lambda"]

TOO_QUIET = 1e-5
"""Probability of a sigma that came out lower than is allowed for."""

LEAST_FACTOR = 1.2
"""However many the runs: errors that add up over a model have heavier tails than a normal distribution."""


def noise_lambda(elements: int, runs: int) -> float:
    """Return how many sigmas of a few stochastic runs a healthy run may be away.

    Args:
        elements: how many the whole comparison judges.
        runs: how many runs sigma is of.

    Source:
        `normal_lambda`, for a sigma that is as low as chi^2 with as many degrees of freedom as runs makes one
        in 1e5; and a run that rounds to nearest stands at `sigma / sqrt(2)` (NUMERICS section 4). In units of
        `normal_lambda` that is 2.4 for 8 runs, 1.6 for 12 and 1.4 for 16. The largest errors of healthy
        Llamas, Qwen3s and Gemma2s of 1.4e6 elements were 1.38 with 8 runs (of 26 models), 0.92 with 12 (of
        16) and 0.83 with 16 (of 4).
    """
    lowest = 2 * float(gammaincinv(runs / 2, TOO_QUIET)) / runs
    return normal_lambda(elements) * max(1 / math.sqrt(2 * lowest), LEAST_FACTOR)


class PairJudge:
    """Judges a pair: explained is `|cand - ref| <= ulp/2 + lambda*sigma` at every element.

    Sigma is the root mean square distance of stochastic runs from this very reference, so the reference's own
    error is in it. Of integers and booleans, which no rounding reaches, any difference diverges.

    Args:
        noise: sigma in row-major order, in flat tensors, at least one.
        fmt: format of the candidate that sigma is of; None for integers and booleans.
        largest: the largest finite value of the candidate's own format, which has no fewer bits.
        multiplier: lambda.
        shape: of the tensors.
        dims: meaning of each dim.
        real: which elements are judged, boolean of the tensors' shape (a view of something smaller will do);
            None for all.
    """

    def __init__(
        self,
        *,
        noise: Iterator[Tensor],
        fmt: Format | None,
        largest: float,
        multiplier: float,
        shape: Sequence[int],
        dims: Sequence[str],
        real: Tensor | None,
    ) -> None:
        self._noise = BlockReader(noise)
        self._fmt = fmt
        self._largest = largest
        self._multiplier = multiplier
        self._shape, self._dims = tuple(shape), tuple(dims)
        self._real = real
        self._seen = 0
        self._elements = 0
        self._outside = 0
        self._ratio = 0.0
        self._worst = 0
        self._values = (math.nan, math.nan)
        self._allowed_ulp = 0.0

    def add(self, ref: Tensor, cand: Tensor) -> None:
        """Judge the next elements, `[N]` of both sides."""
        sigma = self._noise.take(len(ref))
        if self._fmt is None:
            ratio = torch.where(ref == cand, 0.0, math.inf)
            allowed_ulp = torch.zeros(len(ref))
        else:
            y, c = ref.to(torch.float64), cand.to(torch.float64)
            spacing = ulp(y, self._fmt)
            allowed = spacing / 2 + self._multiplier * sigma.to(torch.float64)
            is_finite = y.isfinite() & c.isfinite()
            ratio = torch.where(is_finite, (c - y).abs() / allowed, 0.0)
            ratio = ratio.masked_fill(_class_differs(y, c) & ~self._may_overflow(y, c, allowed), math.inf)
            allowed_ulp = allowed / spacing
        judged = self._judged(len(ref))
        if judged is not None:
            ratio = ratio.masked_fill(~judged, 0.0)
        self._elements += len(ref) if judged is None else int(judged.sum())
        self._outside += int((ratio > 1).sum())
        if len(ref) and float(ratio.max()) > self._ratio:
            worst = int(ratio.argmax())
            self._ratio, self._worst = float(ratio[worst]), self._seen + worst
            self._values = float(ref[worst]), float(cand[worst])
            self._allowed_ulp = float(allowed_ulp[worst])
        self._seen += len(ref)

    def result(self) -> tuple[Arm | None, Evidence]:
        """Return the rule that fired, or None where rounding explains every element, with the figures."""
        self._noise.finish()
        evidence = Evidence(
            max_over_band=self._ratio,
            outside=self._outside,
            elements=self._elements,
            shape=self._shape,
            dims=self._dims,
        )
        if self._ratio > 0:
            at = torch.unravel_index(torch.tensor(self._worst), self._shape)
            evidence = replace(
                evidence,
                worst_index=tuple(int(i) for i in at),
                reference=self._values[0],
                candidate=self._values[1],
            )
        if self._fmt is not None and math.isfinite(self._ratio):
            evidence = replace(
                evidence, ulp_error_max=self._ratio * self._allowed_ulp, worst_allowed_ulp=self._allowed_ulp
            )
        if self._outside == 0:
            return None, evidence
        if self._fmt is None:
            return Arm.EXACT, evidence
        return Arm.MAX if math.isfinite(self._ratio) else Arm.CLASS, evidence

    def _may_overflow(self, y: Tensor, c: Tensor, allowed: Tensor) -> Tensor:
        """Tell where rounding alone can take a value out of its class."""
        is_near_largest = (y.abs() + allowed >= self._largest) & ~y.isnan() & ~c.isnan()
        return is_near_largest | allowed.isinf()

    def _judged(self, count: int) -> Tensor | None:
        if self._real is None:
            return None
        indices = torch.arange(self._seen, self._seen + count)
        return self._real[torch.unravel_index(indices, self._shape)]


def _class_differs(y: Tensor, c: Tensor) -> Tensor:
    """Tell where one side alone is NaN or infinite, or both are infinite with opposite signs."""
    is_opposite = y.isinf() & c.isinf() & (y.sign() != c.sign())
    return (y.isnan() != c.isnan()) | (y.isinf() != c.isinf()) | is_opposite
