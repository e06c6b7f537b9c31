"""Judge a candidate's capture against the reference: from two captures and a model to a result."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from validator.align.builder import build_trace, require_calls
from validator.align.steps import NotOnePrefillError
from validator.align.traces import StepTokens
from validator.capturing.provenance import manifest_metadata, manifest_notes, proof_reasons, software_of
from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture
from validator.checks.endtoend import end_to_end
from validator.checks.engine import elements_of, policy_of, roll_up, run_checks
from validator.checks.heads import head_sizes
from validator.checks.observing import Observer
from validator.checks.output_positions import output_profile
from validator.checks.padding import real_positions
from validator.checks.stepping import told_by_step
from validator.checks.values_writer import ValuesWriter
from validator.errors import MismatchError
from validator.judging_thin import is_thin, outcome_of_thin
from validator.numerics.recipes import Recipe
from validator.prefilling import prefilled
from validator.progress import Progress
from validator.quantised.captures import with_values
from validator.report.result import Result
from validator.reproducing.writing import require_free, write_first

__all__ = ["judged"]

_OTHER_OPERATORS = (
    "are others from step to step and can't be put end to end: capture one prefill of all tokens to see "
    "inside"
)


def judged(
    *,
    reference: nn.Module,
    ref: Capture | None,
    cand: Capture,
    run: Callable[[nn.Module], Any],
    recipe: Recipe | None,
    names: Mapping[str, str],
    layout: Mapping[str, str],
    mesh: Mapping[str, int] | None,
    about: Mapping[str, Any],
    progress: Progress,
    repro: Path | None = None,
    profiles: bool = False,
    values: Path | None = None,
) -> Result:
    """Judge every edge of the candidate's run, and say how the two runs came about.

    Args:
        reference: the trusted model, in eval mode.
        ref: its capture on the same inputs; None for a candidate's run of several steps, which the reference
            computes in one prefill.
        cand: the candidate's.
        run: feeds a model, as both sides were fed.
        recipe: what the device may round, or None for what is allowed where nothing is declared.
        names: the target's.
        layout: the target's.
        mesh: the target's.
        about: what the result says of each side besides the capture's metadata.
        progress: told how much is judged.
        repro: folder for a reproducer of the first finding that has one.
        profiles: whether to keep what each edge looks like.
        values: file to write the values of all edges to, besides; or None.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    if repro is not None:
        require_free(repro)
    weights = None if recipe is None or recipe.weights == "storage" else recipe.weights
    ranks: Sequence[RankCapture] = with_values(cand.all_ranks(), weights=weights)
    notes = manifest_notes(cand.manifest)
    if is_thin(cand.manifest) and ref is not None:
        outcome = outcome_of_thin(
            reference=reference, ref=ref, cand=cand, ranks=ranks, names=names, layout=layout, mesh=mesh
        )
        if repro is not None:
            notes = (*notes, "no reproducer: the capture holds samples of tensors, not whole ones")
        outcome = replace(outcome, notes=(*notes, *outcome.notes), run=_run_of(about, ref, cand))
        return Result(roll_up(outcome, reasons=proof_reasons(cand.manifest)))
    steps: Mapping[int, tuple[StepTokens, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        try:
            own = None if ref is None else ref.rank(0)
            whole = prefilled(reference=reference, ref=own, cand=ranks, folder=Path(scratch))
        except NotOnePrefillError as error:
            if ref is None:
                raise
            whole = None
            notes = (*notes, f"the steps were judged one by one, each side's own: {error}")
        if whole is not None:
            lost = sorted(_with_operators(ranks) - _with_operators(whole.cand))
            if lost:
                notes = (*notes, f"the operators of {', '.join(lost)} {_OTHER_OPERATORS}")
            ref, ranks, run, steps = whole.ref, whole.cand, whole.run, whole.steps
        if ref is None:
            raise MismatchError(f"{cand.path} holds no steps, and the reference was not run")
        ours = ref.rank(0)
        real = real_positions(ours)
        trace = build_trace(
            cand=ranks,
            ref=ours,
            names=names,
            layout=layout,
            mesh=mesh,
            selection=cand.manifest.selection,
        )
        trace = replace(trace, steps=steps, requantised=None if recipe is None else recipe.requantised)
        require_calls(trace, cand.path)
        with nullcontext() if values is None else ValuesWriter(values) as store:
            observer = None
            if profiles or store is not None:
                observer = Observer(heads=head_sizes(reference), store=store)
            outcome = run_checks(
                reference=reference,
                trace=trace,
                run=run,
                policy=policy_of(recipe),
                real=real,
                regions=cand.manifest.compiled,
                observer=observer,
                progress=lambda done, total: progress("judging", done, total),
            )
        if store is not None and store.note is not None:
            notes = (*notes, store.note)
        if repro is not None:
            made = write_first(
                repro,
                outcome.findings,
                reference=reference,
                trace=trace,
                run=run,
                policy=policy_of(recipe),
                elements=elements_of(trace),
                real=real,
                versions=software_of(cand.manifest),
            )
            notes = (*notes, made)
        outcome = replace(
            outcome,
            findings=tuple(told_by_step(finding) for finding in outcome.findings),
            distribution=end_to_end(ref=ours, trace=trace, real=real),
            output=None if observer is None else output_profile(ref=ours, trace=trace, real=real),
            notes=(*notes, *outcome.notes),
            run=_run_of(about, ref, cand),
        )
    return Result(roll_up(outcome, reasons=proof_reasons(cand.manifest)))


def _with_operators(ranks: Sequence[RankCapture]) -> set[str]:
    """Return the modules whose operators some rank recorded."""
    return {call.module or "the model" for rank in ranks for call in rank.calls if call.operators}


def _run_of(about: Mapping[str, Any], ref: Capture, cand: Capture) -> Mapping[str, Any]:
    sides = {
        side: {**about.get(side, {}), **manifest_metadata(captured.manifest)}
        for side, captured in (("reference", ref), ("candidate", cand))
    }
    globs = {"include": cand.manifest.include, "exclude": cand.manifest.exclude}
    chosen = {option: list(given) for option, given in globs.items() if given}
    sides["candidate"] |= {"modules": chosen} if chosen else {}
    return {**about, **sides}
