"""How small a systematic fault may be for the verdict's rules to show it on one edge.

A fault moves each element by `change * direction`: a factor has the oracle's value as its direction, an
altered constant `dy / d log(constant)`. What shows is derived from the figures that the rules judged by
(residuals, band, standard error), without judging again:

- MAX shows a change as soon as one element, rounded to the candidate's format, leaves its band.
- GAIN shows it from `GAIN_Z` standard errors on, above its floor, against the oracle and the control.

Both signs of a change must show, under every recipe that is allowed: what one of them explains is aligned.

Shape legend: * = the edge's shape; N = judged elements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.checks.judge import (
    GAIN_Z,
    MINIMUM_DIFFERING,
    Band,
    Bench,
    gain_floor,
    judge_edge,
    magnitudes,
    rows_of,
    selected_values,
)
from validator.numerics.formats import Format, format_of
from validator.numerics.gain import gain, student_t
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = ["Explanation", "Resolution", "rough_explanation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What rounding explains on an edge under one recipe.

    Attributes:
        band: as `judge_edge` is given it.
        control: `[*]` float64 or None, as `judge_edge` is given it.
    """

    band: Band
    control: Tensor | None = None


def rough_explanation(strict: Band, *, exact: Tensor, control: Tensor, dtype: torch.dtype) -> Explanation:
    """Estimate what a looser recipe explains from a single run to nearest.

    Args:
        strict: band of a stricter recipe, all of which the looser one allows.
        exact: `[*]` float64, the oracle's value.
        control: `[*]` float64, the code run to nearest under the looser recipe, rounded to `dtype`.
        dtype: the candidate's.

    Returns:
        A band with the sigma of a row, in ulp, `sqrt(2)` times the root mean square error of that run before
        its last rounding.

    Source:
        NUMERICS section 4: a run to nearest is off by 0.62 to 0.74 sigma (measured).
    """
    spacing = ulp(exact, format_of(dtype))
    squares = ((control - exact) / spacing).square().nan_to_num(nan=0.0, posinf=0.0)
    mean = squares.mean(-1, keepdim=True) if squares.dim() else squares
    sigma = torch.sqrt(2 * (mean - 1 / 12).clamp_min(0)) * spacing
    band = Band(
        sigma=torch.maximum(sigma, torch.as_tensor(strict.sigma)),
        bound=strict.bound,
        coherent=strict.coherent,
        is_measured=True,
    )
    return Explanation(band=band, control=control)


class Resolution:
    """What the rules would show on an edge that they let pass.

    Args:
        exact: `[*]` float64, the oracle's value.
        cand: `[*]` in the candidate's floating dtype.
        explanations: of the recipe that explains the edge, and of looser ones that are allowed.
        judged: `[*]` boolean, or None for all.
        dims: meaning of each dim.
        bench: what is common to the run.
    """

    def __init__(
        self,
        *,
        exact: Tensor,
        cand: Tensor,
        explanations: Sequence[Explanation],
        judged: Tensor | None,
        dims: tuple[str, ...],
        bench: Bench,
    ) -> None:
        self.exact = exact
        self._cand, self._judged, self._dims, self._bench = cand, judged, dims, bench
        self._explanations = explanations
        self._fmt = format_of(cand.dtype)
        values = cand.to(torch.float64)
        usable = exact.isfinite() & values.isfinite()
        usable = usable if judged is None else usable & judged
        controls = [x.control for x in explanations if x.control is not None]
        for control in controls:
            usable = usable & control.isfinite()
        self._usable = usable
        self._y, self._c = exact[usable], values[usable]
        self._spacing = ulp(self._y, self._fmt)
        where = usable.nonzero()
        self._rows = rows_of(where, dims)
        self._values = magnitudes(self._c, self._fmt)
        self._explained = [self._under(explanation, bench) for explanation in explanations]

    def gain(self) -> float:
        """Return the smallest `g` for which `y -> (1 + g) y` on the whole edge would have shown.

        Returns:
            A positive relative change; inf where no change would show (the oracle is zero everywhere). It is
            an upper bound where many values lie exactly between two of the format, which any change moves.

        Source:
            NUMERICS section 5, MAX and GAIN.
        """
        before = [x.before for x in self._explained]
        return self._smallest(self._y, before, GAIN_Z, self._floors())

    def change(self, direction: Tensor, tried: int) -> float:
        """Return the smallest relative change of a constant that would have shown on this edge.

        Unlike a factor on the result it changes how what comes before it rounds: an element that happens to
        be near the edge of its band may not be so then, and counts as one that is not off.

        Args:
            direction: `[*]` float64, `dy / d log(constant)`.
            tried: how many constants are tried on this edge.

        Returns:
            A positive relative change; inf where no change would show.

        Source:
            NUMERICS section 5, MAX and GAIN, the latter as in `judge_constant`.
        """
        flat = direction[self._usable].nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        if not bool(flat.any()):
            return math.inf
        floors = []
        for floor, x in zip(self._floors(), self._explained, strict=True):
            share = torch.sqrt((x.weight * flat.square()).sum() / (x.weight * self._y.square()).sum())
            floors.append(max(self._fmt.unit_roundoff, floor / float(share)))
        before = [self._y] * len(floors)
        return self._smallest(flat, before, math.sqrt(GAIN_Z**2 + 2 * math.log(tried)), floors)

    def before(self) -> Tensor:
        """Return `[*]` float64, the candidate's values before their last rounding, as far as is known."""
        values = self._cand.to(torch.float64)
        values[self._usable] = self._explained[0].before
        return values

    def shows(self, values: Tensor) -> bool:
        """Say whether the rules would have shown a fault in other values than the candidate's.

        Args:
            values: `[*]` float64, before their last rounding.
        """
        cand = round_nearest(values, self._fmt).to(self._cand.dtype)
        for explanation in self._explanations:
            assessment = judge_edge(
                exact=self.exact,
                cand=cand,
                band=explanation.band,
                control=explanation.control,
                judged=self._judged,
                dims=self._dims,
                bench=self._bench,
            )
            if assessment.arm is None:
                return False
        return True

    def allowance(self) -> Tensor:
        """Return what no element may move by: `[*]` float64, inf where it isn't judged."""
        allowed = torch.full(self._usable.shape, math.inf, dtype=torch.float64)
        widest = torch.stack([x.allowed for x in self._explained]).amax(0)
        allowed[self._usable] = widest + (self._c - self._y).abs()
        return allowed

    def _under(self, explanation: Explanation, bench: Bench) -> "_Explained":
        band = explanation.band
        sigma, bound = (selected_values(x, self._usable) for x in (band.sigma, band.bound))
        allowed = self._spacing / 2 + bound + bench.multiplier(band) * sigma
        noise = torch.hypot(sigma, bound / math.sqrt(3))
        lower, upper = _limits(self._y, allowed, self._fmt)
        control = explanation.control
        return _Explained(
            control=round_nearest(self._y, self._fmt) if control is None else control[self._usable],
            sigma=sigma,
            coherent=band.coherent,
            weight=1 / (self._spacing.square() / 12 + sigma.square()),
            allowed=allowed,
            lower=lower,
            upper=upper,
            before=_before_rounding(self._y, self._c, self._spacing, noise),
        )

    def _floors(self) -> list[float]:
        if not self._y.numel():
            return [0.0] * len(self._explained)
        return [max(gain_floor(self._y, x.sigma, self._fmt), x.coherent) for x in self._explained]

    def _smallest(
        self, direction: Tensor, before: Sequence[Tensor], limit: float, floors: Sequence[float]
    ) -> float:
        """Return the smallest change along `[N]` directions that shows under all recipes."""
        moves = direction != 0
        if not bool(moves.any()):
            return math.inf
        smallest = 0.0
        size = direction.abs()
        for x, value, floor in zip(self._explained, before, floors, strict=True):
            up, down = ((room / size).clamp_min(0) for room in (x.upper - value, value - x.lower))
            by_element = [float(torch.where(sign * direction > 0, up, down)[moves].min()) for sign in (1, -1)]
            shown = max(by_element)
            if shown > floor:  # GAIN shows nothing below its floor
                by_gain = self._gain_arm(x, direction, moves, limit, floor)
                shown = max(min(both) for both in zip(by_element, by_gain, strict=True))
            smallest = max(smallest, shown)
        return smallest

    def _gain_arm(
        self, x: "_Explained", direction: Tensor, moves: Tensor, limit: float, floor: float
    ) -> tuple[float, float]:
        """Return the smallest positive and negative change that GAIN would show."""
        y, c, spacing = (t[moves] for t in (self._y, self._c, self._spacing))
        direction, control, weight = (t[moves] for t in (direction, x.control, x.weight))
        values = torch.unique(self._values[moves], return_inverse=True)[1]
        clusters = {"rows": self._rows[moves], "values": values}
        total = (weight * direction.square()).sum()
        score = (weight * direction).square()
        # A change adds to the gain and leaves the scores as they are; it keeps the gain from being 0,
        # which has no standard error.
        own, of_control = (
            gain(difference=d + direction, reference=direction, weight=weight, **clusters)
            for d in (c - y, c - control)
        )
        if own.abstains or of_control.abstains:
            return math.inf, math.inf
        # Where nothing differs yet, what a change rounds to will.
        rounding = float((score * spacing.square()).sum() / 12 / total.square())
        t = student_t(limit, own.clusters - 1)
        against_oracle = max(t * math.sqrt(max(own.error**2, rounding)), floor)
        # A change of g moves a share g |direction| / ulp of the elements that agree with the control to
        # the next value, which is a variance of the share times ulp^2, at most ulp^2 / 4.
        steps = direction.abs() / spacing
        t = student_t(limit, of_control.clusters - 1)
        flips = t**2 * float((score * spacing.square() * steps).sum() / total.square())
        flipping = (flips + math.sqrt(flips**2 + (2 * t * of_control.error) ** 2)) / 2
        most = t * math.sqrt(of_control.error**2 + 3 * rounding)
        against_control = max(min(flipping, most), floor)
        agree = c == control
        enough = _until(MINIMUM_DIFFERING - int((~agree).sum()), steps[agree])
        plus, minus = (
            max(against_oracle - s * (own.gain - 1), against_control - s * (of_control.gain - 1), enough)
            for s in (1, -1)
        )
        return plus, minus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explained:
    """The judged elements of an edge under one recipe, all `[N]` float64.

    Attributes:
        control: the reference's own code.
        sigma, allowed: noise before the last rounding, and band.
        coherent: relative error that the whole edge may share.
        weight: as in the gain test.
        lower, upper: what lies beyond them rounds to a value outside of the band.
        before: the candidate's value before its rounding, as far as that is known.
    """

    control: Tensor
    sigma: Tensor
    coherent: float
    weight: Tensor
    allowed: Tensor
    lower: Tensor
    upper: Tensor
    before: Tensor


def _limits(y: Tensor, allowed: Tensor, fmt: Format) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest values that round to one inside of the band."""
    highest, lowest = y + allowed, y - allowed
    above, below = ulp(highest, fmt), ulp(lowest, fmt)
    return torch.ceil(lowest / below) * below - below / 2, torch.floor(highest / above) * above + above / 2


def _before_rounding(y: Tensor, c: Tensor, spacing: Tensor, noise: Tensor) -> Tensor:
    """Estimate the candidate's values before their last rounding.

    They lie within half an ulp of `c`, and as near to `y` as the noise before that rounding makes likely:
    the mean of two normal estimates.
    """
    share = noise.square() / (noise.square() + spacing.square() / 12)
    return (y + share * (c - y)).clamp(c - spacing / 2, c + spacing / 2)


def _until(needed: int, steps: Tensor) -> float:
    """Return the change from which on `needed` elements are expected to round otherwise.

    Args:
        needed: how many.
        steps: `[N]` by how many ulp a change of 1 moves each element.
    """
    if needed <= 0:
        return 0.0
    if len(steps) < needed:
        return math.inf
    change = needed / float(steps.sum())
    if change * float(steps.max()) > 1:
        # So few that each must move by an ulp.
        change = 1 / float(steps.topk(needed).values[-1].clamp_min(1e-300))
    return change
