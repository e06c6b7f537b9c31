"""Hold a run, or figures, to a baseline."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from validator.baselines.bits import Bits, compare_bits
from validator.baselines.by_edge import judge_by_edge, require_whole
from validator.baselines.conditions import Difference, differences, is_another_machine
from validator.baselines.figures import FigureVerdict, judge_figures, read_figures
from validator.baselines.recording import RunOptions
from validator.baselines.records import Baseline, Kind
from validator.baselines.resolution import resolution_of
from validator.baselines.results import BaselineCheck
from validator.baselines.store import read_baseline
from validator.capturing.reader import Capture, open_capture
from validator.capturing.records import TensorRef
from validator.comparing.comparison import compare_captures
from validator.comparing.records import Comparison
from validator.errors import MismatchError, UsageError
from validator.judging_thin import dtype_of
from validator.numerics.recipes import RECIPES
from validator.report import phrases
from validator.report.pairs import ComparisonResult

__all__ = ["check_figures", "check_run"]


def check_run(
    name: str,
    source: str,
    *,
    folder: Path,
    options: RunOptions | None = None,
    capture: Path | None = None,
    demands_bits: bool = False,
    by_edge: bool = False,
) -> BaselineCheck:
    """Run a target's candidate, and hold it to a baseline. The reference is not run.

    Whatever differs between the machines and versions of the two runs, the stored noise bounds how far they
    may part (NUMERICS section 8, D3 and D4). It is the noise of the whole model up to each tensor; by edge
    each module is held to its own.

    Args:
        name: of the baseline.
        source: a Python file or a checkpoint folder.
        folder: of the baselines.
        options: how the candidate is run; which modules are captured, and how much of them, is as recorded.
        capture: a capture of the candidate to hold to it instead of running one.
        demands_bits: whether the candidate's bits must be those of the stored candidate.
        by_edge: whether to judge each module by itself besides, as a check of the target does: the reference
            is built for that, and not run as a whole.

    Raises:
        UsageError: there is no such baseline, or it holds figures.
        MismatchError: the candidate was fed with other inputs, or computes in another format than the one
            whose noise is stored.
        ValidatorError: it can't be run or compared.
    """
    baseline = read_baseline(name, folder)
    if baseline.kind is not Kind.RUN:
        raise UsageError(
            f"the baseline {name!r} holds figures, not a run: give --figures FILE in place of {source}"
        )
    ref = open_capture(baseline.reference)
    options = _as_recorded(options or RunOptions(), ref, baseline)
    target = options.target(source)
    if demands_bits and baseline.candidate is None:
        raise UsageError(
            f"--bitwise: the baseline {name!r} holds the reference alone, whose bits no candidate has. "
            f"Record the candidate too: validator baseline record {name} {source}:candidate --update"
        )
    if by_edge:
        require_whole(ref, name)
    with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
        if capture is None:
            capture = options.capture_candidate(source, Path(scratch))
        cand = open_capture(capture)
        _require_inputs(ref, cand, baseline)
        _require_format(ref, cand, baseline)
        comparison = compare_captures(
            ref=ref, cand=cand, names=target.names, layout=target.layout, mesh=target.mesh
        )
        alone = tuple(_without_partner(ref, comparison))
        if alone:
            why = f"{len(alone)} stored tensors have no partner in this run, such as {alone[0]}"
            comparison = replace(comparison, why_inconclusive=(*comparison.why_inconclusive, why))
        edges = judge_by_edge(target=target, ref=ref, cand=cand, name=name) if by_edge else None
        bits, notes = _bits(baseline, cand)
        if edges is None and (bits is None or bits.differing or bits.unknown):
            notes = (*_unseen(ref), *notes)
        return BaselineCheck(
            baseline=baseline,
            differences=_conditions(baseline, cand),
            comparison=ComparisonResult(comparison),
            edges=edges,
            bits=bits,
            demands_bits=demands_bits,
            notes=(*comparison.notes, *notes),
        )


def check_figures(name: str, figures: Path, *, folder: Path) -> BaselineCheck:
    """Hold the figures of a suite to a baseline. A suite that failed is not what the baseline was.

    Args:
        name: of the baseline.
        figures: the file, see `read_figures`.
        folder: of the baselines.

    Raises:
        UsageError: there is no such baseline, it holds a run, or all its figures are of another machine.
        CaptureError: the file holds no figures.
    """
    baseline = read_baseline(name, folder)
    if baseline.kind is not Kind.FIGURES:
        raise UsageError(
            f"the baseline {name!r} holds a run, not figures: give a TARGET in place of --figures"
        )
    found = read_figures(figures)
    otherwise = differences(baseline.run, found.run)
    judged = judge_figures(baseline.figures, found.figures, another_machine=is_another_machine(otherwise))
    if all(figure.verdict in (FigureVerdict.REFUSED, FigureVerdict.NEW) for figure in judged):
        machine = next((str(d) for d in otherwise if d.item == "hardware"), "another machine")
        raise UsageError(
            f"the figures of {name!r} are of speed and memory, and of another machine ({machine}): record a "
            "baseline on this one"
        )
    return BaselineCheck(baseline=baseline, differences=otherwise, figures=judged, suites=found.verdict)


def _as_recorded(options: RunOptions, ref: Capture, baseline: Baseline) -> RunOptions:
    """Return the options with what the baseline was recorded with, where they don't say otherwise."""
    stored, noise = ref.manifest, ref.manifest.noise
    then = {"include": stored.include, "exclude": stored.exclude, "level": str(stored.level)}
    default = RunOptions()
    for name, value in then.items():
        if getattr(options, name) not in (getattr(default, name), value):
            raise MismatchError(
                f"{name} {getattr(options, name)!r}: the baseline {baseline.name!r} was recorded with "
                f"{value!r}, and a run is held to what is stored: leave it out, or record the baseline "
                "again (--update)"
            )
    if noise is not None and options.recipe not in (None, noise.recipe):
        raise MismatchError(
            f"recipe {options.recipe!r}: the noise of the baseline {baseline.name!r} is that of "
            f"{noise.recipe!r}: leave it out, or record the baseline again (--update)"
        )
    return replace(
        options,
        include=stored.include,
        exclude=stored.exclude,
        level=str(stored.level),
        recipe=stored.recipe if stored.recipe in RECIPES else None,  # else it is the target's own
    )


def _require_format(ref: Capture, cand: Capture, baseline: Baseline) -> None:
    """Refuse a candidate that computes in another format than the one whose noise is stored."""
    noise = ref.manifest.noise
    if noise is None:
        return
    then, now = noise.dtype or _name(ref), _name(cand)
    if then != now:
        raise MismatchError(
            f"the noise of the baseline {baseline.name!r} is that of a candidate in {then}, and this one "
            f"computes in {now}: run it in {then} (--dtype), or record a baseline for {now}"
        )


def _name(capture: Capture) -> str:
    return str(dtype_of(capture)).removeprefix("torch.")


def _without_partner(ref: Capture, comparison: Comparison) -> Iterator[str]:
    """Yield the stored outputs and parameters that nothing was compared with.

    Inputs are left out: they are the outputs of others, or a mask that a kernel does without.
    """
    found = {(pair.module, pair.call, pair.side, pair.path) for pair in comparison.pairs}
    for rank in ref.ranks:
        stored = ref.rank(rank)
        for name, parameter in stored.parameters.items():
            key = (name.rpartition(".")[0], 0, "parameter", name)
            if parameter.kind == "parameter" and key not in found:
                yield f"the parameter {name}"
        for call in stored.calls:
            for path, value in call.outputs.items():
                if isinstance(value, TensorRef) and (call.module, call.n, "output", path) not in found:
                    yield f"{phrases.module_name(call.module)}, output {path}".rstrip()


def _unseen(ref: Capture) -> tuple[str, ...]:
    """Say how large a fault may be that noise of the whole model hides, and what shows it."""
    noise = ref.manifest.noise
    found = None if noise is None else resolution_of(ref.rank(0), noise)
    if found is None:
        return ()
    return (
        "a module is held to the noise of all before it, which hides what changes its output by less than "
        f"{found.typical:.2g} of its size at the median module, and {found.coarsest:.2g} at "
        f"{phrases.module_name(found.module)}: --edges judges each by itself, with the target's reference",
    )


def _conditions(baseline: Baseline, cand: Capture) -> tuple[Difference, ...]:
    """Return what was otherwise; of a reference alone, its rank and its format of inputs say nothing."""
    found = differences(baseline.run, cand.manifest.run)
    if baseline.candidate is None:
        return tuple(difference for difference in found if difference.item != "parallelism")
    return found


def _require_inputs(ref: Capture, cand: Capture, baseline: Baseline) -> None:
    """Refuse a run on other inputs than those that the baseline was recorded on."""
    then, now = (_checksums(capture.manifest.run) for capture in (ref, cand))
    for name in then.keys() & now.keys():
        if then[name] != now[name]:
            raise MismatchError(
                f"the baseline {baseline.name!r} was recorded on an input {name} with checksum "
                f"{then[name]}, and "
                f"this run's has {now[name]}: feed the same inputs, or record it again (--update)"
            )


def _checksums(run: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(described["checksum"])
        for name, described in (run.get("inputs") or {}).items()
        if str(described.get("dtype", "")).startswith(("int", "uint", "bool"))
    }


def _bits(baseline: Baseline, cand: Capture) -> tuple[Bits | None, tuple[str, ...]]:
    """Compare with the stored candidate, where it ran on as many ranks."""
    if baseline.candidate is None:
        return None, ()
    stored = open_capture(baseline.candidate)
    then, now = stored.manifest.world_size, cand.manifest.world_size
    if then != now:
        return None, (f"bits were not compared: recorded on {then} ranks, run on {now}",)
    return compare_bits(ref=stored, cand=cand), ()
