"""From a module's code to judgements: each of its edges under each recipe that is allowed.

Shape legend: * = the edge's shape.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from validator.align.traces import Trace, TraceCall, View
from validator.checks.choices import judge_choice
from validator.checks.findings import (
    Arm,
    Check,
    Finding,
    Judgement,
    Unchecked,
    Unobservable,
    Verdict,
)
from validator.checks.hypotheses import hypothesis
from validator.checks.judge import Assessment, Band, Bench, judge_constant, judge_edge, judge_equal
from validator.checks.module_code import Code, CodeChoice, CodeEdge, Key
from validator.checks.observability import undecided_on_edge, unobservable_in_code, unobservable_on_edge
from validator.checks.places import judged_region, places, single_rank
from validator.checks.rank_sums import judge_terms, reduction_sigma
from validator.checks.resolution import Explanation, Resolution, rough_explanation
from validator.checks.summary import summarise
from validator.checks.suspects import Suspect, suspects
from validator.checks.undeclared import Lineup
from validator.numerics.bands import FLUSH, Noise
from validator.numerics.formats import format_of
from validator.numerics.recipes import FUSED, Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["EdgeJudge", "Policy"]


_Explanation = tuple[Assessment, Band, Tensor | None]
"""What the rules say of an edge under a recipe, the band, and the control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explained:
    """That a looser recipe explains an edge.

    Attributes:
        explanation: what the rules say under it.
        op: in which operator.
        left: share of the squared error that its model leaves; None where only the kind of its errors is like
            the candidate's.
    """

    explanation: _Explanation
    op: str | None
    left: float | None


_DIVERTED = "a replay of its code took another path than the first run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What rounding is allowed.

    Attributes:
        allowed: recipes, strictest first; explained by one of them is aligned.
        others: recipes tried after them; explained by one of them is undeclared precision.
    """

    allowed: tuple[Recipe, ...]
    others: tuple[Recipe, ...] = ()

    def __post_init__(self) -> None:
        if not self.allowed:
            raise ValueError("Policy.allowed is empty; at least one recipe must be allowed")


@dataclass(slots=True)
class EdgeJudge:
    """Judges the code of every call of one view, and collects what it says.

    Attributes:
        trace, view: the candidate's run and whose copies are judged.
        policy: what rounding is allowed.
        bench: what is common to the run.
        real: `[batch, tokens]` boolean, the positions that the attention mask calls real, or None for all.
        unobservable: faults that this input could not have shown.
        gaps: what nothing was said of, although something should be.
        errors: `[*]` distance from the control of outputs whose replicas differ, by module, call and path.
        guilty: flat indices of the guilty elements of a call's output, by module, call and path.
    """

    trace: Trace
    view: View
    policy: Policy
    bench: Bench
    real: Tensor | None = None
    judgements: list[Judgement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    unobservable: list[Unobservable] = field(default_factory=list)
    gaps: list[Unchecked] = field(default_factory=list)
    errors: dict[tuple[str, int, str], Tensor] = field(default_factory=dict)
    guilty: dict[tuple[str, int, str], Tensor] = field(default_factory=dict)
    _resolutions: dict[Key, Resolution] = field(default_factory=dict)
    _behind: list[Recipe] = field(default_factory=list)

    def judge(self, code: Code) -> bool:
        """Judge every edge of a call's code, and tell whether its outputs were judged."""
        before, found_before = len(self.gaps), len(self.findings)
        self._resolutions, self._behind = {}, []
        for edge in code.edges:
            if edge.obstacle:
                self.skip(code.call, edge.obstacle)
                continue
            if edge.into is None:
                self._judge_terms(code, edge)
            self._judge_edge(code, edge)
        for choice in code.choices:
            self._judge_choice(code, choice)
        if len(self.gaps) == before and len(self.findings) == found_before:
            self.unobservable += unobservable_in_code(code, self._resolutions, self.view)
        return len(self.gaps) == before and any(edge.into is None for edge in code.edges)

    def skip(self, call: TraceCall, why: str) -> None:
        """Keep that a call's code was judged by no check."""
        self.gaps.append(Unchecked(module=call.module, why=why))

    def _judge_choice(self, code: Code, choice: CodeChoice) -> None:
        """Judge a choice: under what is declared, then under what is behind other edges of the same code."""
        declared = self.policy.allowed[-1]
        first: tuple[CodeEdge, Assessment] | None = None
        verdict: Verdict | None = Verdict.DIVERGENT
        for recipe in (declared, *self._behind):
            spread = None if code.replays is None else code.replays.spread(recipe).get(choice.key)
            if spread is None:
                self.skip(code.call, _DIVERTED)
                return
            edge, assessment = judge_choice(choice, spread, self.bench)
            if assessment.arm is None:
                verdict = None if first is None else Verdict.UNDECLARED_PRECISION
                break
            first = first or (edge, assessment)
        else:
            recipe = declared
        edge, assessment = first or (edge, assessment)
        self._record(code, edge, Check.EXACT, assessment, Band(), recipe, verdict, None, op=choice.op)

    def _judge_edge(self, code: Code, edge: CodeEdge) -> None:
        check = self._check(code, edge)
        cand = edge.cand
        judged = judged_region(cand, self.real, self.view, self.trace.world_size)
        if edge.depth == 0 or not cand.data.is_floating_point():
            assessment = judge_equal(exact=edge.exact, cand=cand.data, judged=judged, dims=cand.dims)
            self._record(code, edge, check, assessment, Band(), None, _verdict(assessment), judged)
            return
        failed: tuple[Assessment, Band, Recipe] | None = None
        for recipe in self.policy.allowed:
            if failed is not None and edge.depth == 1 and _is_alike(recipe, failed[2]):
                continue
            found = self._explanation(code, edge, recipe, judged)
            if found is None:
                self.skip(code.call, _DIVERTED)
                return
            assessment, band, control = found
            hidden = None
            if assessment.arm is None and failed is not None and control is not None:
                hidden = self._hidden_partials(code, edge, recipe, band, control, judged)
            if hidden is not None and failed is not None:
                self._record_undeclared(code, edge, check, failed, hidden, judged)
                return
            if assessment.arm is None:
                self._resolutions[edge.key] = self._resolution(code, edge, recipe, band, control, judged)
                self._record(code, edge, check, assessment, band, recipe, None, judged)
                return
            failed = assessment, band, recipe
        assert failed is not None
        assessment, band, recipe = failed
        if assessment.arm is Arm.GAIN:
            modelled = self._modelled_anew(code, edge, recipe, judged)
            if modelled is not None:
                assessment, band, control = modelled
                self._resolutions[edge.key] = self._resolution(code, edge, recipe, band, control, judged)
                self._record(code, edge, check, assessment, band, recipe, None, judged)
                return
        undeclared = self._undeclared(code, edge, judged)
        if undeclared is None:
            self._record(code, edge, check, assessment, band, recipe, Verdict.DIVERGENT, judged)
            return
        self._record_undeclared(code, edge, check, failed, undeclared, judged)

    def _record_undeclared(
        self,
        code: Code,
        edge: CodeEdge,
        check: Check,
        failed: tuple[Assessment, Band, Recipe],
        behind: tuple[Recipe, str | None],
        judged: Tensor | None,
    ) -> None:
        """Keep that a looser recipe is behind an edge, with what a declared one says of it."""
        (assessment, band, _), (looser, op) = failed, behind
        self._behind += [looser] if looser not in self._behind else []
        verdict = Verdict.UNDECLARED_PRECISION
        self._record(code, edge, check, assessment, band, looser, verdict, judged, op=op)

    def _explanation(
        self, code: Code, edge: CodeEdge, recipe: Recipe, judged: Tensor | None, model: Tensor | None = None
    ) -> _Explanation | None:
        """Judge an edge under a recipe; None where its code can't be replayed.

        Args:
            code: that made the edge.
            edge: the edge.
            recipe: what may be rounded.
            judged: `[*]` boolean, or None for all.
            model: `[*]` the control, where it is known better than by the recipe.
        """
        found = self._band(code, edge, recipe)
        if found is None:
            return None
        band, control = found
        if model is None:
            self._note_error(code, edge, control)
        else:
            control = model
        assessment = self._assess(edge, band, control, judged)
        if _is_marginal(assessment, band):
            # A few elements a little outside: measure better before anything is said.
            band, measured = self._band(code, edge, recipe, is_refined=True) or found
            control = measured if model is None else model
            assessment = self._assess(edge, band, control, judged)
        if _is_rare(assessment, band):
            assessment, band = self._within_reach(code, edge, recipe, assessment, band, control, judged)
        if assessment.arm is None and control is not None and code.replays is not None:
            assessment = self._with_constants(code, edge, assessment, band, control, judged)
        return assessment, band, control

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
        found = self._assess(edge, wider, control, judged)
        left = len(found.outside) if found.arm is Arm.MAX else 0
        return replace(found, undecided=found.undecided + len(assessment.outside) - left), wider

    def _hidden_partials(
        self,
        code: Code,
        edge: CodeEdge,
        recipe: Recipe,
        band: Band,
        control: Tensor,
        judged: Tensor | None,
    ) -> tuple[Recipe, str] | None:
        """Return the undeclared recipe of partial sums that a wide band would hide, and the operator."""
        declared = self.policy.allowed[-1]
        # Sums that may be accumulated in a format may have parts in it.
        known = ("float32", declared.partials, declared.accumulate)
        others = [other for other in self.policy.others if other.partials not in known]
        for suspect in suspects(code, edge, others, declared):
            lineup = Lineup(code, edge, suspect=suspect, band=band, allowed=(recipe,), judged=judged)
            found = lineup.hidden_partials(control)
            if found is not None:
                return suspect.recipe, found.op
        return None

    def _modelled_anew(
        self, code: Code, edge: CodeEdge, recipe: Recipe, judged: Tensor | None
    ) -> _Explanation | None:
        """Judge an edge that only a gain speaks against by the model of the recipe that is nearest to it.

        Where a recipe allows several operators to be narrow, a candidate in which some of them are has other
        systematic errors than the control, in which all are.
        """
        strict = self.policy.allowed[:-1]
        for suspect in suspects(code, edge, (recipe,), strict[-1]) if strict else ():
            explained = self._explained_by(code, edge, suspect, strict, judged)
            if explained is not None:
                return explained.explanation
        return None

    def _undeclared(
        self, code: Code, edge: CodeEdge, judged: Tensor | None
    ) -> tuple[Recipe, str | None] | None:
        """Return the undeclared recipe that is behind an edge, and the operator, or None.

        It is the strictest whose model is near to the candidate unless another's is much nearer, else the
        strictest that makes such errors.
        """
        allowed = self.policy.allowed
        behind: tuple[Recipe, str | None] | None = None
        least = math.inf
        for suspect in suspects(code, edge, self.policy.others, allowed[-1]):
            explained = self._explained_by(code, edge, suspect, allowed, judged)
            if explained is None:
                continue
            left = explained.left
            if behind is None or (left is not None and left < MUCH_NEARER * least):
                behind = suspect.recipe, explained.op
                least = math.inf if left is None else left
            if left == 0:
                break
        return behind

    def _explained_by(
        self,
        code: Code,
        edge: CodeEdge,
        suspect: Suspect,
        strict: tuple[Recipe, ...],
        judged: Tensor | None,
    ) -> _Explained | None:
        """Judge an edge under a looser recipe, whose model must look like the candidate."""
        op, model = suspect.op, None
        left: float | None = 0.0
        if suspect.steps:
            found = self._band(code, edge, suspect.recipe)
            if found is None or self._assess(edge, found[0], None, judged).arm in (Arm.CLASS, Arm.MAX):
                return None
            lineup = Lineup(code, edge, suspect=suspect, band=found[0], allowed=strict, judged=judged)
            alike = lineup.resemblance()
            if alike is None:
                return None
            op, model, left = alike.op, alike.control, alike.left
        explanation = self._explanation(code, edge, suspect.recipe, judged, model)
        if explanation is None or explanation[0].arm is not None:
            return None
        return _Explained(explanation=explanation, op=op, left=left)

    def _note_error(self, code: Code, edge: CodeEdge, control: Tensor | None) -> None:
        """Keep how far an output is from the control, where its replicas differ."""
        made = None if edge.into is not None else code.call.outputs.get(edge.path)
        if made is not None and made.disagreeing:
            fmt = format_of(edge.cand.data.dtype)
            expected = round_nearest(edge.exact, fmt) if control is None else control
            key = (code.call.module, code.call.n, edge.path)
            self.errors[key] = (edge.cand.data - expected).abs()

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

    def _resolution(
        self,
        code: Code,
        edge: CodeEdge,
        recipe: Recipe,
        band: Band,
        control: Tensor | None,
        judged: Tensor | None,
    ) -> Resolution:
        """Return what neither the recipe that explains an edge nor the loosest allowed would explain."""
        explanations = [Explanation(band=band, control=control)]
        loosest = self.policy.allowed[-1]
        if edge.depth == 1 and not _is_alike(recipe, loosest):
            looser = self._band(code, edge, loosest)
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

    def _assess(
        self, edge: CodeEdge, band: Band, control: Tensor | None, judged: Tensor | None
    ) -> Assessment:
        return judge_edge(
            exact=edge.exact,
            cand=edge.cand.data,
            band=band,
            control=control,
            judged=judged,
            dims=edge.cand.dims,
            bench=self.bench,
        )

    def _band(
        self, code: Code, edge: CodeEdge, recipe: Recipe, *, is_refined: bool = False
    ) -> tuple[Band, Tensor | None] | None:
        """Return the band under a recipe and the control's values; None where the code can't be replayed."""
        fmt = format_of(edge.cand.data.dtype)
        reduction = reduction_sigma(code, edge, recipe)
        extra = FLUSH if recipe.flush_subnormals else 0.0
        if edge.depth == 1:
            sigma, bound = (0.0 if x is None else x for x in (edge.sigma, edge.bound))
            noise, control = Noise(sigma=sigma, bound=bound), None
            if not _is_alike(recipe, FUSED):
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

    def _judge_terms(self, code: Code, edge: CodeEdge) -> None:
        """Judge what each rank gave to a sum over ranks."""
        judged = judged_region(edge.cand, self.real, self.view, self.trace.world_size)
        recipe = self.policy.allowed[-1]
        terms = judge_terms(
            code,
            edge,
            recipe=recipe,
            trace=self.trace,
            view=self.view,
            judged=judged,
            bench=self.bench,
        )
        for term in terms:
            verdict = _verdict(term.assessment)
            self._record(
                code, term.edge, Check.PARTIAL, term.assessment, term.band, recipe, verdict, judged, term.rank
            )

    def _check(self, code: Code, edge: CodeEdge) -> Check:
        if edge.into is not None and edge.into is code.call:
            return Check.INPUT
        if not edge.cand.data.is_floating_point():
            return Check.EXACT
        return Check.WIRING if edge.into is not None or code.has_children else Check.FUNCTION

    def _record(
        self,
        code: Code,
        edge: CodeEdge,
        check: Check,
        assessment: Assessment,
        band: Band,
        recipe: Recipe | None,
        verdict: Verdict | None,
        judged: Tensor | None,
        rank: int | None = None,
        op: str | None = None,
    ) -> None:
        """Keep a judgement, and a finding where `verdict` is one."""
        call = code.call
        if rank is None and verdict is not None:
            rank = single_rank(edge.cand, assessment.outside, self.view, self.trace.world_size)
        child = None if edge.into is None or check is Check.INPUT else edge.into.module
        resolution = None if check is Check.PARTIAL else self._resolutions.get(edge.key)
        smallest_gain = None
        if resolution is not None and verdict is None and assessment.evidence.elements:
            smallest_gain = resolution.gain()
            owner = call.module if child is None else child
            hidden = unobservable_on_edge(owner, edge, smallest_gain, is_short=bool(assessment.note))
            self.unobservable += [] if hidden is None else [hidden]
            if assessment.undecided:
                self.unobservable.append(undecided_on_edge(owner, edge, assessment.undecided))
        self.judgements.append(
            Judgement(
                module=call.module,
                candidate_module=call.candidate_module,
                check=check,
                into=child,
                path=edge.path,
                call=call.n,
                rank=rank,
                verdict=verdict or Verdict.ALIGNED,
                arm=assessment.arm,
                recipe=None if recipe is None else recipe.name,
                dtype=str(edge.cand.data.dtype).removeprefix("torch."),
                order=edge.order,
                evidence=assessment.evidence,
                note=_note(code, assessment),
                smallest_gain=smallest_gain,
            )
        )
        if verdict is None or assessment.arm is None:
            return
        if child is None and check in (Check.FUNCTION, Check.WIRING):
            self.guilty[call.module, call.n, edge.path] = _flat(assessment.outside, edge.cand.data.shape)
        signature = hypothesis(
            code,
            edge,
            assessment,
            band,
            judged=judged,
            bench=self.bench,
            world_size=self.trace.world_size,
            reductions=0 if edge.into is not None or check is Check.PARTIAL else len(call.partials),
        )
        where = places(assessment.outside, edge.cand)
        self.findings.append(
            Finding(
                module=call.module,
                candidate_module=call.candidate_module,
                check=check,
                into=child,
                path=edge.path,
                call=call.n,
                rank=rank,
                verdict=verdict,
                arm=assessment.arm,
                recipe=None if recipe is None else recipe.name,
                op=op if assessment.constant is None else assessment.constant.op,
                where=where,
                signature=signature,
                evidence=assessment.evidence,
                order=edge.order,
                summary=summarise(
                    module=call.module,
                    check=check,
                    into=child,
                    path=edge.path,
                    rank=rank,
                    arm=assessment.arm,
                    recipe=recipe if verdict is Verdict.UNDECLARED_PRECISION else None,
                    op=op,
                    evidence=assessment.evidence,
                    signature=signature,
                    where=where,
                ),
            )
        )


def _flat(indices: Tensor, shape: torch.Size) -> Tensor:
    flat = torch.zeros(len(indices), dtype=torch.int64)
    for dim, size in enumerate(shape):
        flat = flat * size + indices[:, dim]
    return flat


MUCH_NEARER = 0.5
"""A looser recipe whose model leaves less than this share of what a stricter one's leaves is named."""

MARGIN = 3.0
MARGINAL_SHARE = 0.01
"""Up to so many bands, in up to this share of the elements, an edge is measured again with more runs."""

RARE_SHARE = 0.05
"""In up to this share of the elements, jumps that rounding makes rarely may explain what is outside."""


def _is_alike(recipe: Recipe, other: Recipe) -> bool:
    """Tell whether two recipes allow the same inside of a single operator."""
    return replace(recipe, name=other.name, inner=other.inner, reduce=other.reduce) == other


def _is_marginal(assessment: Assessment, band: Band) -> bool:
    is_near = (assessment.evidence.max_over_band or 0.0) <= MARGIN
    return is_near and _is_rare(assessment, band, MARGINAL_SHARE)


def _is_rare(assessment: Assessment, band: Band, share: float = RARE_SHARE) -> bool:
    """Tell whether only a few elements are outside of a measured band."""
    most = max(2.0, share * (assessment.evidence.elements or 0))
    return assessment.arm is Arm.MAX and band.is_measured and len(assessment.outside) <= most


def _verdict(assessment: Assessment) -> Verdict | None:
    return None if assessment.arm is None else Verdict.DIVERGENT


def _note(code: Code, assessment: Assessment) -> str:
    notes = [assessment.note] if assessment.note else []
    if assessment.undecided:
        notes.append(f"{assessment.undecided} elements are decided by rounding alone")
    if code.inlined:
        notes.append(f"judged through {', '.join(dict.fromkeys(code.inlined))}: their calls don't line up")
    return "; ".join(notes)
