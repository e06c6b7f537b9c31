"""What the checks said of one view of a run: judgements, findings, and what could not be judged.

Shape legend: * = the edge's shape.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from validator.align.traces import Trace, TraceCall, View
from validator.checks.findings import Check, Finding, Judgement, Unchecked, Unobservable, Verdict
from validator.checks.guilty_ranks import rank_of
from validator.checks.hypotheses import hypothesis
from validator.checks.judge import Assessment, Band, Bench
from validator.checks.module_code import Code, CodeEdge
from validator.checks.observability import undecided_on_edge, unobservable_on_edge
from validator.checks.observing import Observer
from validator.checks.places import places, single_rank
from validator.checks.resolution import Resolution
from validator.checks.stepping import first_step
from validator.checks.summary import summarise
from validator.numerics.recipes import Recipe

__all__ = ["Recorder", "Ruling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What was made of one edge.

    Attributes:
        check: which check judged.
        assessment: what the rules said of it, under the last declared recipe where none explains it.
        verdict: None where the edge is aligned.
        band: what rounding explains.
        recipe: the recipe behind the verdict, or None where nothing was computed.
        judged: `[*]` boolean, or None for all.
        rank: the one rank that it is about, where that is known beforehand.
        op: aten name of the operator that is guilty, where one is.
    """

    check: Check
    assessment: Assessment
    verdict: Verdict | None
    band: Band = field(default_factory=Band)
    recipe: Recipe | None = None
    judged: Tensor | None = None
    rank: int | None = None
    op: str | None = None

    @property
    def is_of_choice(self) -> bool:
        """Whether a choice was judged, by its margin: only then is something exact held to a recipe."""
        return self.check is Check.EXACT and self.recipe is not None


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Collects what is said of the edges of one view.

    Attributes:
        trace, view: the candidate's run and whose copies are judged.
        bench: what is common to the run.
        observer: keeps what each edge looks like, or None.
        unobservable: faults that this input could not have shown.
        gaps: what nothing was said of, although something should be.
        too_deep: compiled regions of which too little was said.
        guilty: flat indices of the guilty elements of a call's output, by module, call and path.
    """

    trace: Trace
    view: View
    bench: Bench
    observer: Observer | None = None
    judgements: list[Judgement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unobservable: list[Unobservable] = field(default_factory=list)
    gaps: list[Unchecked] = field(default_factory=list)
    too_deep: list[Unchecked] = field(default_factory=list)
    guilty: dict[tuple[str, int, str], Tensor] = field(default_factory=dict)

    def skip(self, call: TraceCall, why: str) -> None:
        """Keep that a call's code was judged by no check."""
        self.gaps.append(Unchecked(module=call.module, why=why))

    def record(
        self, code: Code, edge: CodeEdge, ruling: Ruling, resolution: Resolution | None = None
    ) -> None:
        """Keep a judgement, and a finding where the ruling has a verdict.

        Args:
            code: that made the edge.
            edge: the edge.
            ruling: what was made of it.
            resolution: what would have shown on it, where rounding explains it.
        """
        assessment, verdict, check = ruling.assessment, ruling.verdict, ruling.check
        call, rank = code.call, ruling.rank
        if rank is None and verdict is not None:
            rank = single_rank(edge.cand, assessment.outside, self.view, self.trace.world_size)
        child = None if edge.into is None or check is Check.INPUT else edge.into.module
        smallest_gain = None
        if resolution is not None and verdict is None and assessment.evidence.elements:
            smallest_gain = resolution.gain()
            owner = call.module if child is None else child
            hidden = unobservable_on_edge(owner, edge, smallest_gain, is_short=bool(assessment.note))
            self.unobservable += [] if hidden is None else [hidden]
            if assessment.undecided:
                self.unobservable.append(undecided_on_edge(owner, edge, assessment.undecided))
        judgement = Judgement(
            module=call.module,
            candidate_module=call.candidate_module,
            check=check,
            into=child,
            path=edge.path,
            call=call.n,
            rank=rank,
            verdict=verdict or Verdict.ALIGNED,
            arm=assessment.arm,
            recipe=None if ruling.recipe is None else ruling.recipe.name,
            dtype=str(edge.cand.data.dtype).removeprefix("torch."),
            order=edge.order,
            evidence=assessment.evidence,
            note=_note(code, assessment),
            smallest_gain=smallest_gain,
        )
        if self.observer is not None and not ruling.is_of_choice:
            profile = self.observer.look(
                judgement,
                edge,
                call=edge.into or call,
                trace=self.trace,
                band=None if ruling.recipe is None else ruling.band,
                judged=ruling.judged,
                view=self.view,
                bench=self.bench,
            )
            judgement = replace(judgement, profile=profile)
        self.judgements.append(judgement)
        if verdict is None or assessment.arm is None:
            return
        if child is None and check in (Check.FUNCTION, Check.WIRING):
            self.guilty[call.module, call.n, edge.path] = _flat(assessment.outside, edge.cand.data.shape)
        self.findings.append(self._finding(code, edge, ruling, judgement))

    def _finding(self, code: Code, edge: CodeEdge, ruling: Ruling, judgement: Judgement) -> Finding:
        """Return what a judgement comes to, with what the edge looks like."""
        assessment, call = ruling.assessment, code.call
        assert assessment.arm is not None
        signature = hypothesis(
            code,
            edge,
            assessment,
            ruling.band,
            judged=ruling.judged,
            bench=self.bench,
            trace=self.trace,
            view=self.view,
            reductions=0 if edge.into is not None or ruling.check is Check.PARTIAL else len(call.partials),
        )
        rank = judgement.rank
        if rank is None and edge.into is None:
            rank = rank_of(call, signature, self.trace)
        where = places(assessment.outside, edge.cand)
        op = ruling.op
        if assessment.constant is not None and (op is None or code.log is None):
            op = assessment.constant.op
        return judgement.found(
            rank=rank,
            op=op,
            where=where,
            signature=signature,
            step=first_step(call, assessment.outside, edge.cand, self.trace),
            summary=summarise(
                module=judgement.module,
                check=judgement.check,
                into=judgement.into,
                path=judgement.path,
                rank=rank,
                arm=assessment.arm,
                recipe=ruling.recipe if judgement.verdict is Verdict.UNDECLARED_PRECISION else None,
                op=op,
                is_inside=code.log is not None,
                evidence=judgement.evidence,
                signature=signature,
                where=where,
            ),
        )


def _flat(indices: Tensor, shape: torch.Size) -> Tensor:
    flat = torch.zeros(len(indices), dtype=torch.int64)
    for dim, size in enumerate(shape):
        flat = flat * size + indices[:, dim]
    return flat


def _note(code: Code, assessment: Assessment) -> str:
    notes = [assessment.note] if assessment.note else []
    if assessment.undecided:
        notes.append(f"{assessment.undecided} elements are decided by rounding alone")
    if code.inlined:
        notes.append(f"judged through {', '.join(dict.fromkeys(code.inlined))}: their calls don't line up")
    return "; ".join(notes)
