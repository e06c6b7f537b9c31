"""What the rules say of an edge under one recipe: its band, the control, and what they show.

Shape legend: * = the edge's shape.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from validator.align.traces import Trace
from validator.checks.findings import Arm
from validator.checks.judge import Assessment, Band, Bench, judge_constant, judge_edge
from validator.checks.module_code import Code, CodeEdge
from validator.checks.policy import Policy, is_alike
from validator.checks.rank_sums import reduction_sigma
from validator.checks.resolution import Explanation, Resolution, rough_explanation
from validator.checks.stepping import of_later_steps
from validator.numerics.bands import FLUSH, Noise
from validator.numerics.formats import format_of
from validator.numerics.recipes import FUSED, Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["Account", "Explainer"]

MARGIN = 3.0
MARGINAL_SHARE = 0.01
"""Up to so many bands, in up to this share of the elements, an edge is measured again with more runs."""

RARE_SHARE = 0.05
"""In up to this share of the elements, jumps that rounding makes rarely may explain what is outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the rules say of an edge under a recipe.

    Attributes:
        assessment: the rule that fired, or none.
        band: what rounding explains.
        control: `[*]` float64 or None, as `judge_edge` is given it.
    """

    assessment: Assessment
    band: Band
    control: Tensor | None


@dataclass(slots=True, kw_only=True)
class Explainer:
    """Judges edges under recipes.

    Attributes:
        policy: what rounding is allowed.
        bench: what is common to the run.
        errors: `[*]` distance from the control of outputs whose replicas differ, by module, call and path.
        trace: the candidate's run, where steps of it are to be told apart.
    """

    policy: Policy
    bench: Bench
    errors: dict[tuple[str, int, str], Tensor] = field(default_factory=dict)
    trace: Trace | None = None

    def account(
        self, code: Code, edge: CodeEdge, recipe: Recipe, judged: Tensor | None, model: Tensor | None = None
    ) -> Account | None:
        """Judge an edge under a recipe; None where its code can't be replayed.

        Args:
            code: that made the edge.
            edge: the edge.
            recipe: what may be rounded.
            judged: `[*]` boolean, or None for all.
            model: `[*]` the control, where it is known better than by the recipe.
        """
        found = self.band(code, edge, recipe)
        if found is None:
            return None
        band, control = found
        if model is None:
            self._note_error(code, edge, control)
        else:
            control = model
        assessment = self.assess(edge, band, control, judged)
        if _is_marginal(assessment, band):
            # A few elements a little outside: measure better before anything is said.
            band, measured = self.band(code, edge, recipe, is_refined=True) or found
            control = measured if model is None else model
            assessment = self.assess(edge, band, control, judged)
        if _is_rare(assessment, band):
            assessment, band = self._within_reach(code, edge, recipe, assessment, band, control, judged)
        if assessment.arm is None and control is not None and code.replays is not None:
            assessment = self._with_constants(code, edge, assessment, band, control, judged)
        if assessment.arm is None and self.trace is not None:
            assessment = self._of_later_steps(code, edge, assessment, band, control, judged)
        return Account(assessment=assessment, band=band, control=control)

    def assess(self, edge: CodeEdge, band: Band, control: Tensor | None, judged: Tensor | None) -> Assessment:
        """Judge an edge by a band; arguments are as of `judge_edge`."""
        return judge_edge(
            exact=edge.exact,
            cand=edge.cand.data,
            band=band,
            control=control,
            judged=judged,
            dims=edge.cand.dims,
            bench=self.bench,
        )

    def band(
        self, code: Code, edge: CodeEdge, recipe: Recipe, *, is_refined: bool = False
    ) -> tuple[Band, Tensor | None] | None:
        """Return the band under a recipe and the control's values; None where the code can't be replayed."""
        fmt = format_of(edge.cand.data.dtype)
        reduction = reduction_sigma(code, edge, recipe)
        extra = FLUSH if recipe.flush_subnormals else 0.0
        if edge.depth == 1:
            sigma, bound = (0.0 if x is None else x for x in (edge.sigma, edge.bound))
            noise, control = Noise(sigma=sigma, bound=bound), None
            if not is_alike(recipe, FUSED):
                if code.replays is None:
                    return None
                noise = code.replays.rows(recipe).get(edge.key, noise)
                control = code.replays.control(recipe).get(edge.key)
            sigma = torch.hypot(torch.as_tensor(noise.sigma, dtype=torch.float64), reduction)
            has_tails = fmt.precision >= 24 and edge.sigma is not None
            return Band(sigma=sigma, bound=noise.bound + extra, has_tails=has_tails), control
        if code.replays is None:
            return None
        spread = code.replays.spread(recipe, is_refined=is_refined).get(edge.key)
        if spread is None:
            return None
        sigma = torch.hypot(spread.sigma, reduction)
        bound = 0.0 if spread.bound is None else spread.bound
        band = Band(sigma=sigma, bound=bound + extra, coherent=spread.coherent, is_measured=True)
        return band, spread.control

    def resolution(
        self, code: Code, edge: CodeEdge, recipe: Recipe, account: Account, judged: Tensor | None
    ) -> Resolution:
        """Return what neither the recipe that explains an edge nor the loosest allowed would explain."""
        band = account.band
        explanations = [Explanation(band=band, control=account.control)]
        loosest = self.policy.allowed[-1]
        if edge.depth == 1 and not is_alike(recipe, loosest):
            looser = self.band(code, edge, loosest)
            explanations += [] if looser is None else [Explanation(band=looser[0], control=looser[1])]
        elif edge.depth > 1 and recipe != loosest and code.replays is not None:
            made = code.replays.control(loosest).get(edge.key)
            if made is not None:
                dtype = edge.cand.data.dtype
                explanations.append(rough_explanation(band, exact=edge.exact, control=made, dtype=dtype))
        return Resolution(
            exact=edge.exact,
            cand=edge.cand.data,
            explanations=explanations,
            judged=judged,
            dims=edge.cand.dims,
            bench=self.bench,
        )

    def _within_reach(
        self,
        code: Code,
        edge: CodeEdge,
        recipe: Recipe,
        assessment: Assessment,
        band: Band,
        control: Tensor | None,
        judged: Tensor | None,
    ) -> tuple[Assessment, Band]:
        """Judge an edge again with elements outside allowed what rounding may do where code is not linear."""
        reach = None if code.replays is None else code.replays.reach(recipe).get(edge.key)
        if reach is None:
            return assessment, band
        sigma = torch.as_tensor(band.sigma, dtype=torch.float64).expand(reach.shape).clone()
        outside = assessment.outside.unbind(-1)
        sigma[outside] = torch.maximum(sigma[outside], reach[outside] / self.bench.multiplier(band))
        wider = replace(band, sigma=sigma)
        found = self.assess(edge, wider, control, judged)
        left = len(found.outside) if found.arm is Arm.MAX else 0
        return replace(found, undecided=found.undecided + len(assessment.outside) - left), wider

    def _with_constants(
        self,
        code: Code,
        edge: CodeEdge,
        assessment: Assessment,
        band: Band,
        control: Tensor,
        judged: Tensor | None,
    ) -> Assessment:
        """Look for a constant of the code that is off, on an edge that the other rules let pass."""
        assert code.replays is not None
        for constant in code.constants:
            direction = code.replays.sensitivity(constant).get(edge.key)
            if direction is None or not bool(direction.any()):
                continue
            found = judge_constant(
                exact=edge.exact,
                cand=edge.cand.data,
                band=band,
                control=control,
                sensitivity=direction,
                tried=len(code.constants),
                judged=judged,
                dims=edge.cand.dims,
            )
            if found is not None:
                return replace(
                    assessment,
                    arm=Arm.GAIN,
                    evidence=replace(assessment.evidence, gain=found.gain, z=found.z, outside=None),
                    constant=constant,
                )
        return assessment

    def _of_later_steps(
        self,
        code: Code,
        edge: CodeEdge,
        assessment: Assessment,
        band: Band,
        control: Tensor | None,
        judged: Tensor | None,
    ) -> Assessment:
        """Look for a gain, or a constant that is off, in the steps alone that go on from a cache.

        A quantised cache, or a kernel for single tokens, has them; among all tokens of the prefill they are
        too few to show.
        """
        assert self.trace is not None
        later = of_later_steps(code.call, edge.cand, self.trace)
        if later is None:
            return assessment
        later = later if judged is None else later & judged
        found = self.assess(edge, band, control, later)
        if found.arm is None and control is not None and code.replays is not None:
            found = self._with_constants(code, edge, found, band, control, later)
            found = replace(found, outside=later.nonzero()) if found.arm is not None else found
        return assessment if found.arm is None else found

    def _note_error(self, code: Code, edge: CodeEdge, control: Tensor | None) -> None:
        """Keep how far an output is from the control, where its replicas differ."""
        made = None if edge.into is not None else code.call.outputs.get(edge.path)
        if made is not None and made.disagreeing:
            fmt = format_of(edge.cand.data.dtype)
            expected = round_nearest(edge.exact, fmt) if control is None else control
            key = (code.call.module, code.call.n, edge.path)
            self.errors[key] = (edge.cand.data - expected).abs()


def _is_marginal(assessment: Assessment, band: Band) -> bool:
    is_near = (assessment.evidence.max_over_band or 0.0) <= MARGIN
    return is_near and _is_rare(assessment, band, MARGINAL_SHARE)


def _is_rare(assessment: Assessment, band: Band, share: float = RARE_SHARE) -> bool:
    """Tell whether only a few elements are outside of a measured band."""
    most = max(2.0, share * (assessment.evidence.elements or 0))
    return assessment.arm is Arm.MAX and band.is_measured and len(assessment.outside) <= most
