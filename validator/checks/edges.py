"""From a module's code to judgements: each of its edges under each recipe that is allowed.

Shape legend: * = the edge's shape.
"""

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
    Verdict,
)
from validator.checks.hypotheses import hypothesis
from validator.checks.judge import Assessment, Band, Bench, judge_constant, judge_edge, judge_equal
from validator.checks.module_code import Code, CodeEdge
from validator.checks.places import judged_region, places, single_rank
from validator.checks.rank_sums import judge_terms, reduction_sigma
from validator.checks.summary import summarise
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["EdgeJudge", "Policy"]


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


@dataclass(slots=True)
class EdgeJudge:
    """Judges the code of every call of one view, and collects what it says.

    Attributes:
        trace, view: the candidate's run and whose copies are judged.
        policy: what rounding is allowed.
        bench: what is common to the run.
        real: `[batch, tokens]` boolean, the positions that the attention mask calls real, or None for all.
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
    unobservable: list[Unchecked] = field(default_factory=list)
    gaps: list[Unchecked] = field(default_factory=list)
    errors: dict[tuple[str, int, str], Tensor] = field(default_factory=dict)
    guilty: dict[tuple[str, int, str], Tensor] = field(default_factory=dict)

    def judge(self, code: Code) -> bool:
        """Judge every edge of a call's code, and tell whether its outputs were judged."""
        before = len(self.gaps)
        for edge in code.edges:
            if edge.obstacle:
                self.skip(code.call, edge.obstacle)
                continue
            if edge.into is None:
                self._judge_terms(code, edge)
            self._judge_edge(code, edge)
        recipe = self.policy.allowed[-1]
        for choice in code.choices:
            spread = None if code.replays is None else code.replays.spread(recipe).get(choice.key)
            if spread is None:
                self.skip(code.call, _DIVERTED)
            else:
                made, assessment = judge_choice(choice, spread, self.bench)
                self._record(code, made, Check.EXACT, assessment, Band(), recipe, _verdict(assessment), None)

        return len(self.gaps) == before and any(edge.into is None for edge in code.edges)

    def skip(self, call: TraceCall, why: str) -> None:
        """Keep that a call's code was judged by no check."""
        self.gaps.append(Unchecked(module=call.module, why=why))

    def _judge_edge(self, code: Code, edge: CodeEdge) -> None:
        check = self._check(code, edge)
        cand = edge.cand
        judged = judged_region(cand, self.real, self.view, self.trace.world_size)
        if edge.depth == 0 or not cand.data.is_floating_point():
            assessment = judge_equal(exact=edge.exact, cand=cand.data, judged=judged, dims=cand.dims)
            self._record(code, edge, check, assessment, Band(), None, _verdict(assessment), judged)
            return
        failed: tuple[Assessment, Band, Recipe] | None = None
        for recipe in (*self.policy.allowed, *self.policy.others):
            found = self._band(code, edge, recipe)
            if found is None:
                self.skip(code.call, _DIVERTED)
                return
            band, control = found
            self._note_error(code, edge, control)
            assessment = self._assess(edge, band, control, judged)
            if _is_marginal(assessment, band):
                # A few elements a little outside: measure better before anything is said.
                band, control = self._band(code, edge, recipe, is_refined=True) or found
                assessment = self._assess(edge, band, control, judged)
            if assessment.arm is None and control is not None:
                assessment = self._with_constants(code, edge, assessment, band, control, judged)
            if assessment.arm is None:
                if recipe in self.policy.allowed or failed is None:
                    self._record(code, edge, check, assessment, band, recipe, None, judged)
                else:
                    failed_assessment, failed_band, _ = failed
                    verdict = Verdict.UNDECLARED_PRECISION
                    self._record(code, edge, check, failed_assessment, failed_band, recipe, verdict, judged)
                return
            if recipe in self.policy.allowed:
                failed = assessment, band, recipe
            if edge.depth == 1:
                break
        assert failed is not None
        assessment, band, recipe = failed
        self._record(code, edge, check, assessment, band, recipe, Verdict.DIVERGENT, judged)

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
        if edge.depth == 1:
            own = 0.0 if edge.sigma is None else edge.sigma
            sigma = torch.hypot(torch.as_tensor(own, dtype=torch.float64), reduction)
            return Band(sigma=sigma, has_tails=fmt.precision >= 24 and edge.sigma is not None), None
        if code.replays is None:
            return None
        spread = code.replays.spread(recipe, is_refined=is_refined).get(edge.key)
        if spread is None:
            return None
        sigma = torch.hypot(spread.sigma, reduction)
        bound = 0.0 if spread.bound is None else spread.bound
        return Band(sigma=sigma, bound=bound, is_measured=True), spread.control

    def _judge_terms(self, code: Code, edge: CodeEdge) -> None:
        """Judge what each rank gave to a sum over ranks."""
        judged = judged_region(edge.cand, self.real, self.view, self.trace.world_size)
        terms = judge_terms(code, edge, trace=self.trace, view=self.view, judged=judged, bench=self.bench)
        for term in terms:
            verdict, recipe = _verdict(term.assessment), self.policy.allowed[0]
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
    ) -> None:
        """Keep a judgement, and a finding where `verdict` is one."""
        call = code.call
        if rank is None and verdict is not None:
            rank = single_rank(edge.cand, assessment.outside, self.view, self.trace.world_size)
        child = None if edge.into is None or check is Check.INPUT else edge.into.module
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
            )
        )
        if assessment.note:
            self.unobservable.append(
                Unchecked(module=call.module if child is None else child, why=assessment.note)
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
                op=None if assessment.constant is None else assessment.constant.op,
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


MARGIN = 3.0
MARGINAL_SHARE = 0.01
"""Up to so many bands, in up to this share of the elements, an edge is measured again with more runs."""


def _is_marginal(assessment: Assessment, band: Band) -> bool:
    evidence = assessment.evidence
    if assessment.arm is not Arm.MAX or not band.is_measured:
        return False
    is_rare = len(assessment.outside) <= max(2.0, MARGINAL_SHARE * (evidence.elements or 0))
    return is_rare and (evidence.max_over_band or 0.0) <= MARGIN


def _verdict(assessment: Assessment) -> Verdict | None:
    return None if assessment.arm is None else Verdict.DIVERGENT


def _note(code: Code, assessment: Assessment) -> str:
    notes = [assessment.note] if assessment.note else []
    if code.inlined:
        notes.append(f"judged through {', '.join(dict.fromkeys(code.inlined))}: their calls don't line up")
    return "; ".join(notes)
