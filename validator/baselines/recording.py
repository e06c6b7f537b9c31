"""Record a baseline: a run of the reference with its noise, also of the candidate, or figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from validator.baselines.bits import compare_bits
from validator.baselines.conditions import differences, is_another_machine
from validator.baselines.figures import judge_figures, read_figures
from validator.baselines.records import REFERENCE, Baseline, Kind
from validator.baselines.results import Changed, Changes, Recorded
from validator.baselines.store import baseline_folder, has_baseline, read_baseline, replaced, write_baseline
from validator.capturing.reader import open_capture
from validator.capturing.session import level_named
from validator.checks.findings import Verdict
from validator.comparing.comparison import compare_captures
from validator.errors import CaptureError, UsageError, ValidatorError
from validator.judging_thin import dtype_of
from validator.launch import require_devices
from validator.numerics.formats import weights_dtype
from validator.numerics.recipes import recipe_named
from validator.report.pairs import ComparisonResult
from validator.target import Target, load_target
from validator.target_capture import capture_target, require_runs
from validator.testing.records import Ending, Figure

__all__ = ["RUNS", "RunOptions", "record_figures", "record_run"]

RUNS = 12
"""Stochastic runs that a baseline's noise is measured by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a target is run for a baseline; the names are those of `capture_target`."""

    nproc: int = 1
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
    recipe: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    level: str = "full"
    timeout_s: float | None = None
    plant: str | None = None

    def target(self, source: str) -> Target:
        """Load a target with the options of its candidate."""
        return load_target(source, dtype=self.dtype, device=self.device, tp=self.tp)

    def capture_candidate(self, source: str, folder: Path) -> Path:
        """Run the candidate, capture all of it into a folder, and return where."""
        return capture_target(
            source,
            "candidate",
            folder / ("candidate.h5" if self.nproc == 1 else "candidate"),
            nproc=self.nproc,
            device=self.device,
            dtype=self.dtype,
            tp=self.tp,
            recipe=self.recipe,
            include=self.include,
            exclude=self.exclude,
            level=self.level,
            timeout_s=self.timeout_s,
            plant=self.plant,
        )


def record_run(
    name: str,
    source: str,
    side: str = "reference",
    *,
    folder: Path,
    options: RunOptions | None = None,
    noise: int = RUNS,
    update: bool = False,
    command: str = "",
) -> Recorded:
    """Record what a target computes.

    The reference is always recorded, with the noise that rounding carries to each tensor of a candidate:
    later runs are judged by it, without a model. With the candidate a later run is also compared bit by bit.

    Args:
        name: of the baseline.
        source: a Python file or a checkpoint folder.
        side: `"reference"` for the reference alone, `"candidate"` for both.
        folder: of the baselines.
        options: how the target is run.
        noise: stochastic runs that the noise is measured by.
        update: replace a baseline of that name.
        command: that recorded it, for whoever reads the baseline.

    Returns:
        What was written; nothing is where the candidate is divergent.

    Raises:
        ValidatorError: there is one of that name already, or the target can't be run.
    """
    options = options or RunOptions()
    require_runs(source, "reference", noise)
    recipe_named(options.recipe)
    level_named(options.level)
    if options.device is not None:
        require_devices(options.nproc, options.device)
    path = baseline_folder(name, folder)
    former = _former(name, folder, path, update)
    target = options.target(source)
    with replaced(path) as scratch:
        reference, candidate, comparison = scratch / REFERENCE, None, None
        if side == "candidate":
            candidate = options.capture_candidate(source, scratch)
        dtype = options.dtype or _name(_dtype(target, candidate, options.nproc))
        capture_target(
            source,
            "reference",
            reference,
            dtype=dtype,
            recipe=options.recipe,
            include=options.include,
            exclude=options.exclude,
            level=options.level,
            noise=noise,
        )
        if candidate is not None:
            compared = compare_captures(
                ref=open_capture(reference),
                cand=open_capture(candidate),
                names=target.names,
                layout=target.layout,
                mesh=target.mesh,
            )
            comparison = ComparisonResult(compared)
            if comparison.verdict is Verdict.DIVERGENT:
                return Recorded(name=name, baseline=None, comparison=comparison)
        run = open_capture(candidate or reference).manifest.run
        written = write_baseline(_baseline(name, Kind.RUN, scratch, command, source, run))
        changes = _changed_run(former, written) if isinstance(former, Baseline) else former
    return Recorded(name=name, baseline=read_baseline(name, folder), comparison=comparison, changes=changes)


def record_figures(
    name: str, figures: Path, *, folder: Path, update: bool = False, command: str = ""
) -> Recorded:
    """Record the figures of a suite.

    Args:
        name: of the baseline.
        figures: the file, see `read_figures`.
        folder: of the baselines.
        update: replace a baseline of that name.
        command: that recorded it.

    Raises:
        ValidatorError: there is one of that name already, the file holds no figures, or the suites that it
            is of did not pass.
    """
    found = read_figures(figures)
    if found.verdict not in (None, Ending.PASSED):
        raise UsageError(
            f"the suites of {figures} ended {str(found.verdict)!r}, and only figures of a port that passed "
            "are a baseline: mend what failed (`validator run`), then record"
        )
    path = baseline_folder(name, folder)
    former = _former(name, folder, path, update)
    changes = former if isinstance(former, Changes) else None
    if isinstance(former, Baseline):
        otherwise = differences(former.run, found.run)
        judged = judge_figures(former.figures, found.figures, another_machine=is_another_machine(otherwise))
        changes = Changes(differences=otherwise, figures=judged)
    with replaced(path) as scratch:
        write_baseline(
            _baseline(name, Kind.FIGURES, scratch, command, str(figures), found.run, found.figures)
        )
    return Recorded(name=name, baseline=read_baseline(name, folder), changes=changes)


def _former(name: str, folder: Path, path: Path, update: bool) -> Baseline | Changes | None:
    """Return the baseline that is replaced, if one is and may be; of one that can't be read, why."""
    if not path.exists() and not path.is_symlink():
        return None
    if not has_baseline(name, folder):
        raise UsageError(
            f"{str(path)!r} is there and is no baseline: it has no baseline.json. Move it away, or choose "
            "another name"
        )
    if not update:
        raise UsageError(
            f"there is a baseline {name!r} in {str(folder)!r} already: --update replaces it and says what "
            "changed, or choose another name"
        )
    try:
        return read_baseline(name, folder)
    except CaptureError as error:
        return Changes(notes=(f"what it had otherwise is not known: {error}",))


def _baseline(
    name: str,
    kind: Kind,
    folder: Path,
    command: str,
    source: str,
    run: Mapping[str, Any],
    figures: Mapping[str, Figure] | None = None,
) -> Baseline:
    return Baseline(
        name=name,
        kind=kind,
        folder=folder,
        recorded=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        source=source,
        run=run,
        figures=figures or {},
    )


def _changed_run(former: Baseline, new: Baseline) -> Changes:
    """Return what the new run has otherwise than the one that it replaces."""
    sides, notes = [], []
    pairs = [("reference", former.reference, new.reference), ("candidate", former.candidate, new.candidate)]
    if former.kind is not Kind.RUN:
        pairs, notes = [], [f"{former.name} held figures, and holds a run now"]
    for side, old, now in pairs:
        if old is None or now is None:
            continue
        try:
            then, made = open_capture(old), open_capture(now)
            compared = ComparisonResult(compare_captures(ref=then, cand=made))
            bits = compare_bits(ref=then, cand=made)
        except ValidatorError as error:
            notes.append(f"the two {side}s can't be compared: {error}")
        else:
            sides.append(Changed(side=side, comparison=compared, bits=bits))
    return Changes(differences=differences(former.run, new.run), sides=tuple(sides), notes=tuple(notes))


def _dtype(target: Target, candidate: Path | None, nproc: int) -> torch.dtype:
    """Return the format that most of the candidate computes in, which the noise is that of."""
    if candidate is not None:
        return dtype_of(open_capture(candidate))
    if "candidate" not in target.functions or nproc > 1:
        raise UsageError(
            f"nothing says what format a candidate of {target.source} has, and the baseline's "
            "noise is that of "
            "one: give --dtype, such as --dtype bfloat16"
        )
    try:
        model = target.candidate()
    except ValidatorError as error:
        raise UsageError(
            "the candidate can't be built here to see its format, which the baseline's noise is "
            f"of: {error}. "
            "Give --dtype, such as --dtype bfloat16"
        ) from error
    found = weights_dtype(model)
    if found is None:
        raise UsageError(f"the candidate of {target.source} has no floating weight: give --dtype")
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
