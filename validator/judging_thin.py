"""Judge a candidate's capture that holds samples or statistics of its tensors, not the tensors.

No module's code can be run on a sample of its inputs. So each tensor is judged as a pair with the
reference's, by what rounding carries to it through the whole model (`checks.propagation`); parameters and
copies on several ranks are judged as ever, since hashes of them are kept.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from validator.align.builder import build_trace, require_calls
from validator.align.traces import Trace
from validator.capturing.levels import Level
from validator.capturing.manifest import Manifest
from validator.capturing.noise import NoiseSource
from validator.capturing.reader import Capture
from validator.capturing.records import Call, RankCapture, TensorRef
from validator.checks.choice import said_of_choice
from validator.checks.engine import roll_up
from validator.checks.findings import Check, Evidence, Finding, Judgement, Outcome, Unchecked, Verdict
from validator.checks.parameters import check_parameters
from validator.checks.propagation import Propagation
from validator.checks.replicas import check_replicas
from validator.checks.requantised import with_own_scales
from validator.checks.views import merge_views
from validator.comparing.comparison import judge_trace
from validator.comparing.findings import open_questions, passed_over, thin_notes, thin_reasons
from validator.comparing.records import Pair
from validator.errors import CaptureError
from validator.numerics.recipes import EAGER, Recipe
from validator.prefilling import has_steps

__all__ = [
    "RUNS",
    "dtype_of",
    "is_thin",
    "noise_source",
    "outcome_of_thin",
    "require_full",
    "require_single_calls",
]

RUNS = 12
"""Stochastic runs of the reference that the noise is measured by."""

_FLOATS = ("float64", "float32", "float16", "bfloat16")


def is_thin(manifest: Manifest) -> bool:
    """Say whether a capture holds less than whole tensors."""
    return manifest.level is not Level.FULL


def require_full(cand: Capture, what: str) -> None:
    """Raise `CaptureError` if a capture holds less than whole tensors.

    Args:
        cand: the capture.
        what: what needs them, such as `"bisect"`.
    """
    if is_thin(cand.manifest):
        raise CaptureError(
            f"{cand.path} was captured at level {cand.manifest.level.value}, and {what} runs modules on the "
            "candidate's own inputs, which takes whole tensors. Capture again with --level full (for less, "
            "with --include of the modules in question), or judge what there is: "
            f"`validator check TARGET --capture {cand.path}`"
        )


def require_single_calls(cand: Capture) -> None:
    """Raise `CaptureError` if calls of the model continue one another, as decode steps continue a prefill.

    A step's sample is not that of the same tokens in a prefill, and from one step to the next a cache carries
    whatever rounding made of it: only whole tensors can be put end to end and judged as one prefill.

    Args:
        cand: a capture of less than whole tensors.
    """
    if has_steps([cand.rank(rank) for rank in cand.ranks]):
        raise CaptureError(
            f"{cand.path} was captured at level {cand.manifest.level.value}, and its calls continue one "
            "another (a prefill and decode steps): they are judged as one prefill, which takes whole "
            "tensors. Capture again with --level full, or capture one prefill of all tokens"
        )


def dtype_of(cand: Capture) -> torch.dtype:
    """Return the dtype that most of a candidate's floating outputs have."""
    found: Counter[str] = Counter()
    for call in cand.rank(cand.ranks[0]).calls:
        for value in call.outputs.values():
            if isinstance(value, TensorRef) and value.meta.dtype in _FLOATS:
                found[value.meta.dtype] += 1
    if not found:
        raise CaptureError(f"{cand.path} holds no output of floating numbers, so there is nothing to judge")
    dtype: torch.dtype = getattr(torch, found.most_common(1)[0][0])
    return dtype


def noise_source(
    *, model: nn.Module, run: Callable[[], Any], recipe: Recipe | None, dtype: torch.dtype, runs: int = RUNS
) -> NoiseSource:
    """Return what measures the noise of a reference that a candidate of a dtype is judged by.

    Args:
        model: the reference.
        run: feeds it.
        recipe: what the candidate may round; None for the loosest that is allowed undeclared.
        dtype: the candidate's.
        runs: stochastic runs.
    """

    def source(keeps: Callable[[str, int], bool], folder: Path) -> Propagation:
        return Propagation(
            model=model,
            run=run,
            recipe=recipe or EAGER,
            dtype=dtype,
            runs=runs,
            keeps=keeps,
            folder=folder,
        )

    return source


def outcome_of_thin(
    *,
    reference: nn.Module,
    ref: Capture,
    cand: Capture,
    ranks: Sequence[RankCapture],
    names: Mapping[str, str],
    layout: Mapping[str, str],
    mesh: Mapping[str, int] | None,
) -> Outcome:
    """Judge a candidate by the samples or statistics that its capture holds.

    Args:
        reference: the trusted model.
        ref: its capture on the same inputs, with noise.
        cand: the candidate's.
        ranks: what each of its ranks recorded.
        names: the target's.
        layout: the target's.
        mesh: the target's.

    Returns:
        The outcome, rolled up; with no end-to-end figures, which take whole logits.

    Raises:
        MismatchError: no call of one side lines up with one of the other.
        CaptureError: a file is damaged.
    """
    ours = ref.rank(0)
    trace = build_trace(
        cand=ranks,
        ref=ours,
        names=names,
        layout=layout,
        mesh=mesh,
        expands_batch=False,
        selection=cand.manifest.selection,
    )
    require_calls(trace, cand.path)
    trace = with_own_scales(reference, trace)
    parameters = [check_parameters(reference=reference, trace=trace, view=view) for view in trace.views]
    found = merge_views([one[1] for one in parameters], trace.views, ())
    judgements = merge_views([one[0] for one in parameters], trace.views, ())
    pairs, of_pairs, missed = judge_trace(ref=ours, trace=trace, noise=ref.manifest.noise)
    ends = {(call.module, call.n): _end(call) for call in ours.calls}
    of_copies, odd = check_replicas(
        trace,
        [*found, *of_pairs],
        [],
        # Right behind what the call returns: `_place`.
        lambda call, path: _place(ends[call.module, call.n]) + 1,
    )
    of_pairs = tuple(replace(finding, order=_place(finding.order)) for finding in of_pairs)
    findings: list[Finding] = sorted([*found, *of_pairs, *odd], key=lambda finding: finding.order)
    judgements += [*of_copies, *_judgements(pairs, trace, ends)]
    why = [f"{len(missed)} tensors could not be compared: {missed[0]}"] if missed else []
    is_one_region = "" in cand.manifest.compiled
    why += [*thin_reasons(ref, cand), *open_questions(pairs)]
    judged = _judged(reference, pairs, is_one_region=is_one_region)
    of_choice, notes = said_of_choice(reference, trace.left_out, judged)
    why += [*of_choice, *_gaps(reference, trace, judged)]
    return roll_up(
        Outcome(
            verdict=Verdict.ALIGNED,
            findings=tuple(findings),
            judgements=tuple(sorted(judgements, key=lambda judgement: judgement.order)),
            unchecked=tuple(
                dict.fromkeys([*_unchecked(trace), *(gap for one in parameters for gap in one[2])])
            ),
            notes=(*thin_notes(ref, cand), *notes, *passed_over(pairs)),
        ),
        reasons=why,
    )


def _end(call: Call) -> int:
    """Return when a call ended, in the reference's sequence of events."""
    return call.start if call.end is None else call.end


def _place(event: int) -> int:
    """Return the place in execution order of an event; there is room for copies between two."""
    return 2 * event


def _judgements(pairs: Sequence[Pair], trace: Trace, ends: Mapping[tuple[str, int], int]) -> list[Judgement]:
    rows = []
    for pair in pairs:
        call, said = trace.calls[pair.module, pair.call], pair.judged
        if said is None:
            continue
        judgement = Judgement(
            module=pair.module,
            candidate_module=pair.candidate_module,
            check=Check.PAIR,
            verdict=said.verdict,
            order=_place(call.order if pair.side == "input" else ends[pair.module, pair.call]),
            evidence=_evidence(pair),
            path="/".join(filter(None, ("inputs" if pair.side == "input" else "", pair.path))),
            call=pair.call,
            rank=pair.rank,
            arm=said.arm,
            dtype=pair.candidate_dtype,
            note="" if said.gap is None else str(said.gap),
        )
        rows.append(judgement)
    return rows


def _evidence(pair: Pair) -> Evidence:
    said = pair.judged
    return Evidence(shape=pair.shape) if said is None or said.evidence is None else said.evidence


def _unchecked(trace: Trace) -> list[Unchecked]:
    return [Unchecked(module=module, why=why) for module, why in trace.problems]


def _judged(reference: nn.Module, pairs: Sequence[Pair], *, is_one_region: bool) -> set[str]:
    """Return the modules that something was said of.

    The output of a module speaks for those inside of it, that of the model only where nothing else can be
    looked at, since the model is compiled whole.
    """
    settled = (Verdict.ALIGNED, Verdict.DIVERGENT, Verdict.INCONCLUSIVE)
    outputs = {
        pair.module
        for pair in pairs
        if pair.side == "output" and pair.judged is not None and pair.judged.verdict in settled
    }
    return {
        fqn
        for fqn, _ in reference.named_modules()
        if any(name in outputs for name in _with_parents(fqn, is_one_region=is_one_region))
    }


def _gaps(reference: nn.Module, trace: Trace, judged: Collection[str]) -> list[str]:
    """Return what nothing was said of, although the verdict would need it."""
    fired = {module for module, _ in trace.calls} | set(trace.unmatched_reference)
    missing = [
        fqn
        for fqn, module in reference.named_modules()
        if fqn in fired and next(module.parameters(recurse=False), None) is not None and fqn not in judged
    ]
    reasons = []
    if "" not in judged and "" not in trace.left_out:
        reasons.append("the model's output was judged by no check")
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        reasons.append(f"no check judged {', '.join(missing[:3])}{more}")
    return [*reasons, *(f"the candidate has no output {path}" for m, path in trace.missing_outputs if not m)]


def _with_parents(fqn: str, *, is_one_region: bool) -> list[str]:
    parts = fqn.split(".")
    return [".".join(parts[:n]) for n in range(0 if is_one_region else 1, len(parts) + 1)]
