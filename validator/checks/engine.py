"""All checks of a run, in DESIGN.md's order, rolled up to one outcome."""

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from validator.align.traces import Edge, Trace, TraceCall
from validator.checks.cache_declarations import DeclaredCaches
from validator.checks.choice import said_of_choice
from validator.checks.edges import EdgeJudge
from validator.checks.execution_order import ExecutionOrder
from validator.checks.findings import (
    Check,
    Finding,
    Judgement,
    Outcome,
    Unchecked,
    Unobservable,
    Verdict,
)
from validator.checks.hidden import unwrapped
from validator.checks.judge import Bench
from validator.checks.module_code import Code
from validator.checks.observing import Observer
from validator.checks.padding import Real
from validator.checks.parameters import check_parameters
from validator.checks.policy import Policy
from validator.checks.replicas import check_replicas
from validator.checks.requantised import with_own_scales
from validator.checks.unexercised import unexercised
from validator.checks.views import merge_views, mixed_outputs
from validator.checks.walk import walk
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe

__all__ = ["elements_of", "policy_of", "roll_up", "run_checks"]

_Reason = TypeVar("_Reason", Unchecked, Unobservable)


class _Everything:
    """Holds every module."""

    def __contains__(self, module: object) -> bool:
        return True


def policy_of(declared: Recipe | None) -> Policy:
    """Return what a declared recipe allows.

    Nothing declared allows `fused` and `eager`; a declared recipe allows itself and what of these two it
    covers. Tried as undeclared are the declared one (`eager`, where there is none) with what each known
    recipe allows beyond it, strictest first. What a cache is declared to hold is the same in all that is
    allowed; the caches of known recipes are tried besides.
    """
    if declared is None:
        return Policy(allowed=(FUSED, EAGER), others=_looser(EAGER), caches=_other_caches(EAGER))
    fused, eager = (
        replace(strict, reduce=declared.reduce, block=declared.block).reading(declared)
        for strict in (FUSED, EAGER)
    )
    allowed = [strict for strict in (fused, eager) if declared.covers(strict) and not strict.covers(declared)]
    others: list[Recipe] = []
    if not declared.covers(fused):
        # It promises more than float32: that is the first thing to be tried.
        others.append(fused)
    basis = declared if not others else fused
    return Policy(
        allowed=(*allowed, declared), others=(*others, *_looser(basis)), caches=_other_caches(declared)
    )


def _looser(basis: Recipe) -> tuple[Recipe, ...]:
    known = [recipe for recipe in RECIPES.values() if recipe.cache == "storage"]
    looser = (replace(basis.loosened(recipe), name=recipe.name) for recipe in known)
    return tuple(recipe for recipe in looser if replace(recipe, name=basis.name) != basis)


def _other_caches(declared: Recipe) -> tuple[Recipe, ...]:
    """Return a declared recipe with each other cache that a known one has, none of codes included."""
    known = [EAGER, *(recipe for recipe in RECIPES.values() if recipe.cache != "storage")]
    made = (replace(declared.reading(recipe), name=recipe.name) for recipe in known)
    return tuple(recipe for recipe in made if recipe.reading(declared) != recipe)


def run_checks(
    *,
    reference: nn.Module,
    trace: Trace,
    run: Callable[[nn.Module], Any],
    policy: Policy,
    real: Real | None = None,
    scope: Container[str] | None = None,
    elements: int | None = None,
    regions: Collection[str] = (),
    observer: Observer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Judge a candidate's run against the reference.

    Args:
        reference: the trusted model, in eval mode.
        trace: the candidate's run in the reference's names.
        run: feeds the model, as the target says.
        policy: what rounding is allowed.
        real: the positions to judge, or None for all.
        scope: modules whose code is judged, and is missed where it is not; the values of others that the
            trace holds are theirs to be built on. None for every module.
        elements: how many elements are judged in the whole run, of which this may be a part; None for those
            of the trace.
        regions: modules of the candidate that were compiled with all that is inside of them.
        observer: keeps what each edge looks like, or None.
        progress: told how many calls are judged, of how many.

    Raises:
        UsageError: the declared recipe gives scales of a cache to modules that the reference hasn't got, or
            that attend to nothing.

    Returns:
        The outcome; its metadata, end-to-end figures and reasons of the capture are the caller's to add.
    """
    caches = DeclaredCaches.of(policy.allowed[-1], reference)
    trace = with_own_scales(reference, trace)
    bench = Bench(elements=elements or elements_of(trace))
    is_judged = _Everything() if scope is None else scope
    judges: list[EdgeJudge] = []
    gaps: list[str] = []
    reasons: list[str] = []
    alone: list[str] = []
    judgements: list[list[Judgement]] = []
    findings: list[list[Finding]] = []
    unchecked: list[Unchecked] = []
    unobservable: list[Unobservable] = []
    covered: set[str] = set()
    through: set[str] = set()
    order = ExecutionOrder()
    done, total = 0, len(trace.calls) * len(trace.views)
    for view in trace.views:
        edge_judge = EdgeJudge(
            trace=trace,
            view=view,
            policy=policy,
            bench=bench,
            real=real,
            regions=regions,
            observer=observer,
        )

        def judge(code: Code, edge_judge: EdgeJudge = edge_judge) -> None:
            nonlocal done
            caches.saw(code)
            if code.call.module in is_judged and edge_judge.judge(code):
                covered.update((code.call.module, *code.inlined))
                through.update(code.inlined)
            done += 1
            if progress is not None:
                progress(min(done, total), total)

        def skip(call: TraceCall, why: str, edge_judge: EdgeJudge = edge_judge) -> None:
            if call.module in is_judged:
                edge_judge.skip(call, why)

        written = walk(
            reference=reference, trace=trace, view=view, run=run, judge=judge, skip=skip, order=order
        )
        rows, found, missing = check_parameters(reference=reference, trace=trace, view=view, written=written)
        rows = [row for row in rows if row.module in is_judged]
        found = [finding for finding in found if finding.module in is_judged]
        missing = [item for item in missing if item.module in is_judged]
        said = edge_judge.said
        judges.append(edge_judge)
        judgements.append(rows + said.judgements)
        findings.append(found + said.findings)
        alone += [item.module for item in missing if item.module not in alone]
        unchecked += missing + said.gaps + said.too_deep
        reasons += [f"{gap.module or 'the model itself'}: {gap.why}" for gap in said.too_deep]
        gaps += [gap.module or "the model itself" for gap in said.gaps]
        unobservable += said.unobservable
    # What a caller was judged through needs no row of its own: the caller's says so.
    unchecked[:0] = [
        Unchecked(module=m, why=why) for m, why in trace.problems if m in is_judged and m not in through
    ]
    mixed = mixed_outputs(trace, judges)
    merged_findings = merge_views(findings, trace.views, mixed)
    merged_judgements = merge_views(judgements, trace.views, mixed)
    replica_judgements, replica_findings = check_replicas(
        trace, merged_findings, [judge.explainer.errors for judge in judges], order.copies
    )
    merged_findings = sorted([*merged_findings, *replica_findings], key=lambda f: f.order)
    merged_judgements = sorted([*merged_judgements, *replica_judgements], key=lambda j: j.order)
    unchecked += [item for item in _silent(reference, trace, covered) if item.module in is_judged]
    unobservable += unexercised(reference, trace, trace.views[0])
    reasons_of_choice, notes_of_choice = said_of_choice(reference, trace.left_out, covered)
    reasons += reasons_of_choice
    outcome = Outcome(
        verdict=Verdict.ALIGNED,
        findings=tuple(merged_findings),
        judgements=tuple(merged_judgements),
        unchecked=_unique(unchecked),
        unobservable=_unique(unobservable),
        notes=(*caches.notes, *notes_of_choice, *_notes(trace, is_judged, regions)),
    )
    reasons += _gaps(reference, trace, outcome, covered, gaps, alone, is_judged)
    return roll_up(outcome, reasons=list(dict.fromkeys(reasons)))


def roll_up(outcome: Outcome, reasons: Sequence[str] = ()) -> Outcome:
    """Return the outcome with the run's verdict: DESIGN.md, "Roll-up".

    Args:
        outcome: findings and judgements; reasons that it holds already are kept.
        reasons: further reasons why an absence of findings would prove nothing.
    """
    why = (*outcome.why_inconclusive, *reasons)
    verdicts = {finding.verdict for finding in outcome.findings}
    if Verdict.DIVERGENT in verdicts:
        verdict = Verdict.DIVERGENT
    elif Verdict.UNDECLARED_PRECISION in verdicts:
        verdict = Verdict.UNDECLARED_PRECISION
    elif why:
        verdict = Verdict.INCONCLUSIVE
    else:
        verdict = Verdict.ALIGNED
    return replace(outcome, verdict=verdict, why_inconclusive=why)


def _gaps(
    reference: nn.Module,
    trace: Trace,
    outcome: Outcome,
    covered: set[str],
    gaps: Sequence[str],
    alone: Sequence[str],
    is_judged: Container[str],
) -> list[str]:
    """Return what nothing was said of, although the verdict would need it."""
    reasons = []
    fired = {module for module, _ in trace.calls} | set(trace.unmatched_reference)
    fired |= {module for module, _ in trace.problems}
    # A check of a parent that ran through a module's own code judged that module as well.
    missing = list(dict.fromkeys(gaps))
    missing += [
        fqn
        for fqn, module in reference.named_modules()
        if fqn not in missing and fqn not in covered and fqn in fired and _bears_parameters(module)
        if fqn in is_judged
    ]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        reasons.append(f"no check judged {shown}")
    reasons += [f"the candidate has no output {path}" for module, path in trace.missing_outputs if not module]
    reasons += [
        f"parameters of {module} were compared with nothing" for module in alone if module not in covered
    ]
    judged_outputs = [
        j
        for j in outcome.judgements
        if not j.module and j.into is None and j.check in (Check.WIRING, Check.FUNCTION, Check.EXACT)
    ]
    if not judged_outputs and "" in is_judged and "" not in trace.left_out:
        reasons.append("the model's output was judged by no check")
    return reasons


def _silent(reference: nn.Module, trace: Trace, covered: set[str]) -> list[Unchecked]:
    modules = dict(reference.named_modules())
    return [
        Unchecked(module=fqn, why="it fired in the reference but not in the candidate")
        for fqn in trace.unmatched_reference
        if fqn in modules and fqn not in covered and _bears_parameters(modules[fqn])
    ]


def _bears_parameters(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def elements_of(trace: Trace) -> int:
    """Return how many elements are judged in a run."""
    edges: Iterable[Edge] = (
        edge for call in trace.calls.values() for edge in (*call.inputs.values(), *call.outputs.values())
    )
    return sum(torch.Size(edge.shape).numel() for edge in edges)


def _notes(trace: Trace, is_judged: Container[str], regions: Collection[str]) -> tuple[str, ...]:
    notes = []
    compiled = {call.module for call in trace.calls.values() if unwrapped(call.candidate_module) in regions}
    theirs = [
        name
        for name in trace.unmatched_reference
        if name in is_judged and not any(_is_inside(name, region) for region in compiled)
    ]
    ours = [name for name in trace.unmatched_candidate if unwrapped(name) not in regions]
    names: Sequence[str]
    for names, side, other in ((theirs, "reference", "candidate"), (ours, "candidate", "reference")):
        if names:
            named = [name or "(the model itself)" for name in names]
            shown = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
            notes.append(f"fired in the {side} but not in the {other}: {shown}")
    if trace.found_names:
        lines = ", ".join(f"{old!r}: {new!r}" for old, new in trace.found_names.items())
        notes.append(f"matched by structure and values, as by names = {{{lines}}}")
    lacking = [
        name for name in trace.unmatched_parameters[0] if name.rpartition(".")[0] not in trace.left_out
    ]
    for names, side in ((lacking, "reference"), (trace.unmatched_parameters[1], "candidate")):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            notes.append(f"parameters of the {side} alone: {shown}")
    return tuple(notes)


def _is_inside(name: str, region: str) -> bool:
    return not region or name == region or name.startswith(f"{region}.")


def _unique(items: Iterable[_Reason]) -> tuple[_Reason, ...]:
    return tuple(dict.fromkeys(items))
