"""An edge that diverges, as the searches for its signature see it.

Shape legend: * = the edge's shape; N = judged elements.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from validator.align.traces import Part
from validator.numerics.formats import Format
from validator.numerics.ulp import ulp

__all__ = ["Subject", "residual_ulp"]

EXPLAINED_SHARE = 0.5
"""A correction leaves at most so much of the squared error of what is outside the band."""

ROUNDED = 1 / 9
SIGNIFICANT = 5.0
"""Where most elements that are outside are so by little: a correction leaves at most this mean square error
in ulp (rounding alone leaves 1/12), and takes away this much from the sum of squares, 60 times what one
fitted number takes away by chance."""

THINNED = 2**20
"""So many elements are enough to refute a hypothesis; only one that they leave is held to all."""


def residual_ulp(error: Tensor, spacing: Tensor) -> float:
    """Return the root mean square of errors in root mean square ulp: near-zero elements don't drown the rest.

    Args:
        error: `[N]` float64.
        spacing: `[N]` float64, the ulp at each reference value.
    """
    return float(torch.sqrt(error.square().mean() / spacing.square().mean()))


def _no_terms() -> Mapping[int, Tensor]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of the edge.

    Attributes:
        exact: `[*]` float64 oracle.
        cand: `[*]` float64 candidate.
        allowed: `[*]` float64, what the band allows.
        fmt: the candidate's format.
        judged: `[*]` boolean.
        dims: meaning of each dim, `""` where it has none.
        bias: `[channels]` float64 bias of the module, or None.
        world_size: number of ranks.
        ranks: those whose copies of the edge these are; empty for all.
        reductions: how many sums over ranks the call made.
        terms: `[*]` float64 what each rank should give to the edge's sum over ranks, by rank; empty where
            that is not known.
        parts: which rank holds which box of the edge.
        head_size: channels of a head where the channels are those of heads, or None.
        routing: `[rows, k]` the experts that each token was sent to, or None.
        usable: `[*]` boolean, judged and finite on both sides.
        outside: `[*]` boolean, usable and outside the band.
    """

    exact: Tensor
    cand: Tensor
    allowed: Tensor
    fmt: Format
    judged: Tensor
    dims: tuple[str, ...] = ()
    bias: Tensor | None = None
    world_size: int = 1
    ranks: tuple[int, ...] = ()
    reductions: int = 0
    terms: Callable[[], Mapping[int, Tensor]] = _no_terms
    parts: tuple[Part, ...] = ()
    head_size: int | None = None
    routing: Tensor | None = None
    usable: Tensor = field(init=False)
    outside: Tensor = field(init=False)

    def __post_init__(self) -> None:
        usable = self.judged & self.exact.isfinite() & self.cand.isfinite()
        object.__setattr__(self, "usable", usable)
        object.__setattr__(self, "outside", usable & ((self.cand - self.exact).abs() > self.allowed))

    def residual(
        self, corrected: Tensor, *, slack: float = 1.0, inexact: Tensor | float = 0.0
    ) -> float | None:
        """Hold the candidate to corrected values of the oracle.

        Args:
            corrected: `[*]` float64.
            slack: bands that the corrected values may be off.
            inexact: how far the correction itself may be off.

        Returns:
            What stays, in ulp; None where some of it is more than `slack` bands and half an ulp, or where
            most of the difference stays and it is more than rounding leaves.
        """
        # The candidate rounded the corrected value, which may be far larger than the oracle's.
        spacing = torch.maximum(ulp(corrected, self.fmt), ulp(self.exact, self.fmt))
        error = ((self.cand - corrected).abs() - inexact).clamp_min(0)
        is_left = error > slack * self.allowed + spacing / 2
        if bool((is_left & self.usable).any()):
            return None
        before = (self.cand - self.exact).abs()
        if error[self.outside].square().sum() > EXPLAINED_SHARE * before[self.outside].square().sum():
            own, left = ((x / spacing)[self.usable].square() for x in (before, error))
            if left.mean() > ROUNDED or (own - left).sum() < SIGNIFICANT:
                return None
        return residual_ulp(error[self.usable], spacing[self.usable])

    def within(self, region: Tensor) -> "Subject":
        """Return the part of the edge that a boolean `[*]` marks."""
        return replace(self, judged=self.judged & region)

    def thinned(self) -> "Subject":
        """Return rows of the edge, evenly spaced, with some that are guilty; all of it where it is small."""
        if self.exact.numel() <= THINNED or self.exact.dim() < 2:
            return self
        width = self.exact.shape[-1]
        count = self.exact.numel() // width
        rows = torch.arange(0, count, -(-count * width // THINNED))
        chosen = self._of_rows(rows)
        if not bool(chosen.outside.any()):
            guilty = self.outside.reshape(-1, width).any(-1).nonzero()[:, 0]
            chosen = self._of_rows(torch.cat([rows, guilty[: len(rows)]]))
        return chosen

    def _of_rows(self, rows: Tensor) -> "Subject":
        return self.rearranged(lambda values: values.reshape(-1, self.exact.shape[-1])[rows])

    def rearranged(self, change: Callable[[Tensor], Tensor], *, dims: tuple[str, ...] = ()) -> "Subject":
        """Return the edge with some of its elements, or in another shape.

        Args:
            change: makes the new tensor of each of shape `[*]`.
            dims: meaning of the new dims. Which rank or expert an element was of is not known any more.
        """

        def changed(values: Tensor) -> Tensor:
            return change(values.expand(self.exact.shape))

        return replace(
            self,
            exact=changed(self.exact),
            cand=changed(self.cand),
            allowed=changed(self.allowed),
            judged=changed(self.judged),
            dims=dims,
            parts=(),
            routing=None,
            terms=lambda: {rank: changed(term) for rank, term in self.terms().items()},
        )
