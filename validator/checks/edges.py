"""From a module's code to judgements: each of its edges under each recipe that is allowed.

Shape legend: * = the edge's shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from validator.align.traces import LogicalTensor, PartialSum, Trace, TraceCall, View
from validator.checks.findings import (
    Arm,
    Check,
    Evidence,
    Finding,
    Judgement,
    Signature,
    Unchecked,
    Verdict,
)
from validator.checks.judge import Assessment, Band, Bench, judge_constant, judge_edge, judge_equal
from validator.checks.module_code import Code, CodeChoice, CodeEdge
from validator.checks.places import judged_region, places, single_rank
from validator.checks.signatures import edge_signature, fit_constant, residual_ulp
from validator.checks.summary import summarise
from validator.numerics.bands import matmul_sigma
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = ["EdgeJudge", "Policy"]


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

    def judge(self, code: Code) -> None:
        """Judge every edge of a call's code."""
        for edge in code.edges:
            if edge.into is None:
                self._judge_partials(code, edge)
            self._judge_edge(code, edge)
        for choice in code.choices:
            self._judge_choice(code, choice)

    def skip(self, call: TraceCall, why: str) -> None:
        """Keep that a call's code was judged by no check."""
        self.unchecked.append(Unchecked(module=call.module, why=why))

    def _judge_edge(self, code: Code, edge: CodeEdge) -> None:
        check = self._check(code, edge)
        cand = edge.cand
        judged = judged_region(cand, self.real, self.view, self.trace.world_size)
        if edge.depth == 0 or not cand.data.is_floating_point():
            assessment = judge_equal(exact=edge.exact, cand=cand.data, judged=judged, dims=cand.dims)
            verdict = None if assessment.arm is None else Verdict.DIVERGENT
            self._record(code, edge, check, assessment, Band(), None, verdict, judged)
            return
        failed: tuple[Assessment, Band, Recipe] | None = None
        for recipe in (*self.policy.allowed, *self.policy.others):
            found = self._band(code, edge, recipe)
            if found is None:
                self.unchecked.append(
                    Unchecked(
                        module=code.call.module,
                        why="a replay of its code took another path than the first run",
                    )
                )
                return
            band, control = found
            assessment = judge_edge(
                exact=edge.exact,
                cand=cand.data,
                band=band,
                control=control,
                judged=judged,
                dims=cand.dims,
                bench=self.bench,
            )
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

    def _band(self, code: Code, edge: CodeEdge, recipe: Recipe) -> tuple[Band, Tensor | None] | None:
        """Return the band under a recipe and the control's values; None where the code can't be replayed."""
        fmt = format_of(edge.cand.data.dtype)
        reduction = self._reduction_sigma(code, edge, recipe)
        if edge.depth == 1:
            own = 0.0 if edge.sigma is None else edge.sigma
            sigma = torch.hypot(torch.as_tensor(own, dtype=torch.float64), reduction)
            return Band(sigma=sigma, has_tails=fmt.precision >= 24 and edge.sigma is not None), None
        spread = None if code.replays is None else code.replays.spread(recipe).get(edge.key)
        if spread is None:
            return None
        sigma = torch.hypot(spread.sigma, reduction)
        bound = 0.0 if spread.bound is None else spread.bound
        return Band(sigma=sigma, bound=bound, is_measured=True), spread.control

    def _reduction_sigma(self, code: Code, edge: CodeEdge, recipe: Recipe) -> Tensor:
        """Return the noise of partial results that were rounded before they were summed across ranks."""
        zero = torch.zeros((), dtype=torch.float64)
        if edge.into is not None or not code.call.partials:
            return zero
        terms = _partial_values(code.call.partials[0], tuple(edge.exact.shape))
        if terms is None:
            return zero
        dtype = edge.cand.data.dtype if recipe.reduce == "storage" else getattr(torch, recipe.reduce)
        fmt = format_of(dtype)
        variance = torch.zeros_like(edge.exact)
        prefix = torch.zeros_like(edge.exact)
        # The sum's own rounding is the result's, unless a bias is added to it.
        roundings = len(terms) - (getattr(code.module, "bias", None) is None)
        for i, term in enumerate(terms):
            variance += ulp(term, fmt).nan_to_num().square() / 12
            prefix = prefix + term
            if 0 < i < roundings:
                variance += ulp(prefix, fmt).nan_to_num().square() / 12
        return variance.sqrt()

    def _judge_choice(self, code: Code, choice: CodeChoice) -> None:
        """Judge a choice by its margin: what was chosen must be as good, but for rounding, as the best."""
        recipe = self.policy.allowed[-1]
        assert code.replays is not None
        spread = code.replays.spread(recipe).get(choice.key)
        if spread is None:
            return
        loss = (choice.best - choice.chosen).abs()
        # Two values are compared, each with its own noise.
        allowed = self.bench.multiplier(Band(is_measured=True)) * math.sqrt(2) * spread.sigma
        outside = loss > allowed
        indices = outside.nonzero()
        ratio = torch.where(loss > 0, loss / allowed, torch.zeros_like(loss))
        worst = tuple(indices[0].tolist()) if len(indices) else None
        evidence = Evidence(
            max_over_band=float(ratio.max()) if ratio.numel() else 0.0,
            worst_index=worst,
            reference=None if worst is None else float(choice.best[worst]),
            candidate=None if worst is None else float(choice.chosen[worst]),
            outside=len(indices),
            elements=loss.numel(),
            shape=tuple(loss.shape),
        )
        assessment = Assessment(arm=Arm.MAX if len(indices) else None, evidence=evidence, outside=indices)
        edge = CodeEdge(
            key=choice.key,
            into=None,
            path=choice.op,
            order=choice.order,
            exact=choice.best,
            depth=2,
            sigma=None,
            bound=None,
            cand=LogicalTensor(data=choice.chosen, parts=(), dims=("",) * loss.dim()),
        )
        verdict = Verdict.DIVERGENT if len(indices) else None
        self._record(code, edge, Check.EXACT, assessment, Band(), recipe, verdict, None)

    def _judge_partials(self, code: Code, edge: CodeEdge) -> None:
        """Judge what each rank gave to the sum against its slice of the oracle."""
        call, module = code.call, code.module
        if type(module) is not nn.Linear or not call.partials or edge.path or len(call.inputs) != 1:
            return
        partial = call.partials[0]
        (source,) = call.inputs.values()
        x = source.read(self.view).data.to(torch.float64)
        weight = self._parameter(call, "weight", module.weight)
        bias = None if module.bias is None else self._parameter(call, "bias", module.bias)
        judged = judged_region(edge.cand, self.real, self.view, self.trace.world_size)
        for rank in self.view.ranks:
            box = partial.input_boxes.get(rank)
            if (
                rank not in partial.tensors
                or box is None
                or partial.tensors[rank].shape != edge.cand.data.shape
            ):
                continue
            cand = partial.tensors[rank]
            start, stop = box[-1]
            part, rows = x[..., start:stop], weight[:, start:stop].T
            exact = part @ rows
            assessment, band = self._assess_partial(exact, part, rows, cand, judged, edge.cand.dims)
            if assessment.arm is not None and bias is not None:
                # One rank may add the bias: the sum over ranks then holds it once.
                added = exact + bias
                other, other_band = self._assess_partial(added, part, rows, cand, judged, edge.cand.dims)
                if other.arm is None:
                    assessment, band, exact = other, other_band, added
            made = CodeEdge(
                key=(None, f"partial/{rank}"),
                into=None,
                path=edge.path,
                order=edge.order,
                exact=exact,
                depth=1,
                sigma=None,
                bound=None,
                cand=LogicalTensor(data=cand, parts=(), dims=edge.cand.dims),
            )
            self._record(
                code,
                made,
                Check.PARTIAL,
                assessment,
                band,
                self.policy.allowed[0],
                None if assessment.arm is None else Verdict.DIVERGENT,
                judged,
                rank=rank,
            )

    def _assess_partial(
        self,
        exact: Tensor,
        part: Tensor,
        rows: Tensor,
        cand: Tensor,
        judged: Tensor | None,
        dims: tuple[str, ...],
    ) -> tuple[Assessment, Band]:
        band = Band(sigma=matmul_sigma(part, rows, exact), has_tails=format_of(cand.dtype).precision >= 24)
        assessment = judge_edge(
            exact=exact, cand=cand, band=band, control=None, judged=judged, dims=dims, bench=self.bench
        )
        return assessment, band

    def _parameter(self, call: TraceCall, name: str, parameter: Tensor) -> Tensor:
        """Return a parameter of the reference, rounded to the candidate's storage format."""
        edge = self.trace.parameters.get(f"{call.module}.{name}" if call.module else name)
        dtype = parameter.dtype if edge is None else getattr(torch, edge.dtype)
        return round_nearest(parameter.detach().to(torch.float64), format_of(dtype))

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
        signature = self._signature(code, edge, assessment, band, judged, check)
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

    def _signature(
        self,
        code: Code,
        edge: CodeEdge,
        assessment: Assessment,
        band: Band,
        judged: Tensor | None,
        check: Check,
    ) -> Signature | None:
        cand = edge.cand.data
        if not cand.is_floating_point() or assessment.arm is None:
            return None
        spacing = ulp(edge.exact, format_of(cand.dtype)).nan_to_num(nan=1.0)
        allowed = spacing / 2 + band.bound + self.bench.multiplier(band) * band.sigma
        region = (
            torch.ones(cand.shape, dtype=torch.bool) if judged is None else judged.expand(cand.shape).clone()
        )
        bias = getattr(code.module, "bias", None) if edge.into is None else None
        found = edge_signature(
            exact=edge.exact,
            cand=cand.to(torch.float64),
            allowed=allowed,
            spacing=spacing,
            judged=region,
            bias=bias.detach().to(torch.float64) if isinstance(bias, Tensor) else None,
            world_size=self.trace.world_size,
            reductions=0 if edge.into is not None or check is Check.PARTIAL else len(code.call.partials),
        )
        return found or self._altered_constant(code, edge, band, spacing, allowed, region)

    def _altered_constant(
        self, code: Code, edge: CodeEdge, band: Band, spacing: Tensor, allowed: Tensor, region: Tensor
    ) -> Signature | None:
        """Look for a constant of the code that, altered, makes the edge agree."""
        if code.replays is None:
            return None
        cand = edge.cand.data.to(torch.float64)
        usable = region & edge.exact.isfinite() & cand.isfinite()
        weight = 1 / (spacing.square() / 12 + torch.as_tensor(band.sigma).square())
        for constant in code.constants:
            fitted = fit_constant(
                code.replays, constant, edge.key, cand=cand, weight=weight.expand(cand.shape), usable=usable
            )
            if fitted is None or fitted.factor == 1.0:
                continue
            error = (cand - fitted.values)[usable].abs()
            if bool((error > allowed[usable] + spacing[usable] / 2).any()):
                continue
            parameters = {"op": constant.op, "value": constant.value, "factor": fitted.factor}
            residual = residual_ulp(error, spacing[usable])
            return Signature(kind="constant", parameters=parameters, residual_ulp=residual)
        return None


def _partial_values(partial: PartialSum, shape: tuple[int, ...]) -> Sequence[Tensor] | None:
    """Return every rank's term of a sum in float64, or None where the shapes are not the result's."""
    terms = [partial.tensors[rank].to(torch.float64) for rank in sorted(partial.tensors)]
    return terms if terms and all(tuple(term.shape) == shape for term in terms) else None


def _note(code: Code, assessment: Assessment) -> str:
    notes = [assessment.note] if assessment.note else []
    if code.inlined:
        notes.append(f"judged through {', '.join(dict.fromkeys(code.inlined))}: their calls don't line up")
    return "; ".join(notes)
