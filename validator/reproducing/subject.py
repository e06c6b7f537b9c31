"""What a reproducer is about: the code behind a finding, judged once more.

Nothing is kept from the first time: the reference is walked through until it comes to the finding's call.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from validator.align.traces import Trace, TraceCall, View
from validator.checks.edges import EdgeJudge
from validator.checks.explaining import Account
from validator.checks.findings import Check, Finding
from validator.checks.inside.culprit import Inside
from validator.checks.inside.naming import Culprit
from validator.checks.judge import Bench, judge_equal
from validator.checks.module_code import Code, CodeEdge
from validator.checks.padding import Real
from validator.checks.places import judged_region
from validator.checks.policy import Policy
from validator.checks.rank_sums import judge_terms
from validator.checks.walk import walk
from validator.errors import UsageError
from validator.reproducing.program import Program, program_of
from validator.reproducing.terms import term_program

__all__ = ["Subject", "find_subject", "why_not"]

_RUN = (Check.FUNCTION, Check.WIRING, Check.REPLICA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Code to run, and what is known of its result.

    Attributes:
        program: the operator, or the module's code up to the edge.
        what: which of the two, in words.
        code: behind the result.
        edge: the result: the oracle's value and the candidate's.
        account: what the rules say of it; None where any differing value is wrong.
        judged: `[*]` boolean, or None for all.
        ours: the candidate's operator, where it is one.
    """

    program: Program
    what: str
    code: Code
    edge: CodeEdge
    account: Account | None
    judged: Tensor | None
    ours: str | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether the rules say that the candidate's value is wrong."""
        return self.account is None or self.account.assessment.arm is not None


class _Found(BaseException):
    """The finding's call was judged: ends the walk early, and is no error."""


def find_subject(
    finding: Finding,
    *,
    reference: nn.Module,
    trace: Trace,
    run: Callable[[nn.Module], Any],
    policy: Policy,
    real: Real | None,
    elements: int,
) -> Subject:
    """Walk to the code behind a finding, and return it.

    Args:
        finding: of a module's computation, or of a parameter, of which the owner's code is taken.
        reference: the trusted model, in eval mode.
        trace: the candidate's run in the reference's names.
        run: feeds the model, as the target says.
        policy: what rounding is allowed.
        real: the positions to judge, or None for all.
        elements: how many elements the whole run judges.

    Raises:
        UsageError: nothing is computed there, or the code can't be run again.
    """
    unfit = why_not(finding)
    if unfit is not None:
        raise UsageError(unfit)
    found: list[Subject] = []
    reasons: list[str] = []
    was_judged: list[bool] = []
    view = _view(trace, finding)

    def judge(code: Code) -> None:
        if code.log is None or code.call.n != finding.call:
            return
        edge_judge = EdgeJudge(
            trace=trace, view=view, policy=policy, bench=Bench(elements=elements), real=real
        )
        edge = _edge(code, finding)
        if edge is None:
            return
        subject = (
            _of_term(code, edge, finding, edge_judge)
            if finding.check is Check.PARTIAL
            else _of_code(code, edge, edge_judge)
        )
        was_judged.append(True)
        if subject is not None:
            found.append(subject)
            raise _Found

    def skip(call: TraceCall, why: str) -> None:
        if call.module == finding.module:
            reasons.append(why)

    try:
        walk(
            reference=reference,
            trace=trace,
            view=view,
            run=run,
            judge=judge,
            skip=skip,
            looks_inside=lambda call: call.module == finding.module and call.n == finding.call,
        )
    except _Found:
        return found[0]
    if was_judged:
        reasons.append("judged once more, by itself, rounding explains it")
    why = reasons[0] if reasons else "no code of its own stands behind it"
    raise UsageError(f"no reproducer of {finding.module or 'the model'}: {why}")


def why_not(finding: Finding) -> str | None:
    """Say why a finding can't have a reproducer, whatever stands behind it; None where it may have one."""
    if finding.check in (*_RUN, Check.EXACT, Check.PARTIAL, Check.PARAMETER):
        return None
    return (
        f"no reproducer of {finding.module or 'the model'}: its {finding.check} check compares values "
        "that nothing was computed for"
    )


def _view(trace: Trace, finding: Finding) -> View:
    """Return the view in which the finding's rank has its own copies."""
    return next((v for v in trace.views if finding.rank in v.ranks), trace.views[0])


def _edge(code: Code, finding: Finding) -> CodeEdge | None:
    if finding.check is Check.PARAMETER:
        return next((edge for edge in code.edges if edge.into is None), None)
    alike = [
        edge
        for edge in code.edges
        if edge.path == finding.path
        and (None if edge.into is None else edge.into.module) == finding.into
        and (edge.into is None or edge.into is not code.call)
    ]
    return next((edge for edge in alike if edge.order == finding.order), alike[0] if alike else None)


def _of_code(code: Code, edge: CodeEdge, judge: EdgeJudge) -> Subject | None:
    """Return the operator behind an edge where the candidate's were recorded, else all code behind it."""
    assert code.log is not None
    if code.call.operators:
        inside = Inside(code=code, explainer=judge.explainer, view=judge.view, real=judge.real_of(code.call))
        judged = judged_region(edge.cand, judge.real_of(code.call), judge.view, judge.trace.world_size)
        culprit = inside.culprit(edge, judged)
        subject = None if culprit is None else _of_operator(code, inside, culprit, judge)
        if subject is not None:
            return subject
    mark = code.log.marks.get(edge.key)
    if mark is None:
        return None
    program = program_of(code.log, slot=mark[0], positions=code.log.behind(*mark), starts={})
    subject = _judged(program, f"the code of {code.call.module or 'the model'}", code, edge, judge)
    return subject if subject is not None and subject.is_wrong else None


def _of_operator(code: Code, inside: Inside, culprit: Culprit, judge: EdgeJudge) -> Subject | None:
    assert code.log is not None
    alone = inside.alone(culprit)
    if alone is None:
        return None
    program = program_of(code.log, slot=alone.slot, positions=alone.positions, starts=alone.starts)
    what = f"{alone.works} operators with {culprit.op}" if alone.works > 1 else f"the operator {culprit.op}"
    subject = _judged(program, what, alone.code, alone.code.edges[0], judge, alone.judged)
    if subject is None or not subject.is_wrong:
        return None
    return replace(subject, ours=culprit.ours)


def _of_term(code: Code, edge: CodeEdge, finding: Finding, judge: EdgeJudge) -> Subject | None:
    recipe = judge.policy.allowed[-1]
    terms = judge_terms(
        code, edge, recipe=recipe, trace=judge.trace, view=judge.view, judged=None, bench=judge.bench
    )
    term = next((tried[0] for tried in terms if tried[0].rank == finding.rank), None)
    if term is None:
        return None
    account = Account(assessment=term.assessment, band=term.band, control=None)
    return Subject(
        program=term_program(code, term, trace=judge.trace, view=judge.view),
        what=f"what rank {term.rank} adds to the sum of {code.call.module}",
        code=term.code,
        edge=term.edge,
        account=account,
        judged=None,
    )


def _judged(
    program: Program,
    what: str,
    code: Code,
    edge: CodeEdge,
    judge: EdgeJudge,
    judged: Tensor | None = None,
) -> Subject | None:
    if judged is None:
        judged = judged_region(edge.cand, judge.real_of(code.call), judge.view, judge.trace.world_size)
    if edge.depth == 0 or not edge.cand.data.is_floating_point():
        found = judge_equal(exact=edge.exact, cand=edge.cand.data, judged=judged, dims=edge.cand.dims)
        if found.arm is None:
            return None
        return Subject(program=program, what=what, code=code, edge=edge, account=None, judged=judged)
    account = None
    for recipe in judge.policy.allowed:
        account = judge.explainer.account(code, edge, recipe, judged)
        if account is None or account.assessment.arm is None:
            break
    if account is None:
        return None
    return Subject(program=program, what=what, code=code, edge=edge, account=account, judged=judged)
