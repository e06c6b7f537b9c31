"""Write the two files of a reproducer.

Shape legend: * = the result's shape.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOTDIR
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.traces import Trace
from validator.checks.findings import Arm, Finding
from validator.checks.judge import GAIN_Z, Bench, gain_floor, magnitudes, rows_of, selected_values
from validator.checks.padding import Real
from validator.checks.policy import Policy
from validator.checks.stepping import told_by_step
from validator.errors import UsageError
from validator.numerics.formats import format_of
from validator.numerics.gain import gain
from validator.numerics.ulp import ulp
from validator.reproducing.script import script, titles
from validator.reproducing.subject import Subject, find_subject, why_not
from validator.reproducing.tensor_file import write_tensors

__all__ = [
    "NOTHING_FOUND",
    "Reproducer",
    "require_free",
    "require_writable",
    "write_first",
    "write_reproducer",
]

SCRIPT, TENSORS = "reproduce.py", "tensors.safetensors"
NOTHING_FOUND = "no reproducer: nothing was found"

_MOST_WALKS = 3
"""Each try walks through the reference once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproducer:
    """Where a reproducer is, and what of the finding it shows.

    Attributes:
        script, tensors: its files.
        what: the code that it runs, in words.
    """

    script: Path
    tensors: Path
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slope:
    direction: Tensor
    weight: Tensor
    limit: float


def write_reproducer(
    folder: str | os.PathLike[str],
    finding: Finding,
    *,
    reference: nn.Module,
    trace: Trace,
    run: Callable[[nn.Module], Any],
    policy: Policy,
    elements: int,
    real: Real | None = None,
    versions: Mapping[str, str] | None = None,
) -> Reproducer:
    """Write a reproducer of a finding.

    The finding's call is judged once more for it. Where its operators were recorded it runs the one that is
    wrong, on what the candidate gave it; else the module's code up to the edge.

    Args:
        folder: made if it is not there; what it holds already is an error.
        finding: of a check of this trace.
        reference: the trusted model, in eval mode.
        trace: the candidate's run in the reference's names.
        run: feeds the model, as the target says.
        policy: what rounding was allowed.
        elements: how many elements the check judged in all.
        real: the positions to judge, or None for all.
        versions: of the software of the candidate's run, by name.

    Raises:
        UsageError: nothing is computed where the finding is, or the folder holds a reproducer already or
            can't be written.
    """
    place = Path(folder)
    require_free(place)
    files = Reproducer(script=place / SCRIPT, tensors=place / TENSORS, what="")
    subject = find_subject(
        finding,
        reference=reference,
        trace=trace,
        run=run,
        policy=policy,
        real=real,
        elements=elements,
    )
    slope = _slope(subject)
    judged = torch.ones(subject.edge.exact.shape, dtype=torch.bool)
    if subject.judged is not None:
        judged &= subject.judged
    tensors = {
        "judge/oracle": subject.edge.exact,
        "judge/candidate": subject.edge.cand.data,
        "judge/allowed": _allowed(subject, Bench(elements=elements)),
        "judge/judged": judged,
        **{f"given/{name}": tensor for name, tensor in subject.program.inputs.items()},
    }
    if slope is not None:
        tensors |= {
            "judge/direction": slope.direction,
            "judge/weight": slope.weight,
            "judge/limit": torch.tensor(slope.limit, dtype=torch.float64),
        }
    about = _about(finding, subject, versions or {})
    text = script(
        subject.program,
        about=about,
        kind="band" if slope is None else "slope",
        dtype=subject.edge.cand.data.dtype,
    )
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_tensors(files.tensors, tensors, about)
        files.script.write_text(text, encoding="utf-8")
    except OSError as error:
        for file in (files.tensors, files.script):
            with suppress(OSError):
                file.unlink(missing_ok=True)
        raise _unwritable(place, error) from None
    return Reproducer(script=files.script, tensors=files.tensors, what=subject.what)


def write_first(
    folder: Path,
    findings: Sequence[Finding],
    *,
    reference: nn.Module,
    trace: Trace,
    run: Callable[[nn.Module], Any],
    policy: Policy,
    elements: int,
    real: Real | None = None,
    versions: Mapping[str, str] | None = None,
) -> str:
    """Write a reproducer of the first finding that has one, and say in words what became of it.

    Args:
        folder: as for `write_reproducer`, like all others.
        findings: of a check, in order.
        reference: the trusted model.
        trace: the candidate's run.
        run: feeds the model.
        policy: what rounding was allowed.
        elements: how many elements the check judged.
        real: positions to judge.
        versions: of software.

    Raises:
        UsageError: the folder holds a reproducer already.
    """
    require_free(folder)
    reasons = [why for finding in findings if (why := why_not(finding)) is not None]
    for finding in [finding for finding in findings if why_not(finding) is None][:_MOST_WALKS]:
        try:
            made = write_reproducer(
                folder,
                finding,
                reference=reference,
                trace=trace,
                run=run,
                policy=policy,
                elements=elements,
                real=real,
                versions=versions,
            )
        except UsageError as error:
            reasons.append(str(error))
            continue
        return f"{made.script} reproduces {made.what}: {finding.module or 'the model'}"
    return reasons[0] if reasons else NOTHING_FOUND


def require_writable(folder: Path) -> None:
    """Raise `UsageError` for a folder in which no reproducer can be written; it is left as it was."""
    require_free(folder)
    around = folder
    while not around.exists() and around != around.parent:
        around = around.parent
    try:
        if not around.is_dir():
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
        with TemporaryFile(dir=around):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from None


def require_free(folder: Path) -> None:
    """Raise `UsageError` for a folder that holds a reproducer already."""
    taken = [name for name in (SCRIPT, TENSORS) if (folder / name).exists()]
    if taken:
        raise UsageError(f"--repro {folder} holds {taken[0]} already; name a new folder, or remove it")


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--repro {folder} can't be written: {error.strerror}; name a folder that you may write"
    )


def _about(finding: Finding, subject: Subject, versions: Mapping[str, str]) -> dict[str, str]:
    known = ", ".join(f"{name} {version}" for name, version in versions.items())
    finding, step = told_by_step(finding), ""
    if finding.step is not None:
        start, stop = finding.step.start, finding.step.stop
        step = f"{finding.step}, " + (f"tokens {start}:{stop}" if stop > start + 1 else f"token {start}")
    return titles(
        (
            ("Reproducer", f"{subject.what}, for a finding of validator"),
            ("Finding", finding.summary),
            ("Verdict", f"{finding.verdict} ({finding.arm}), {finding.check} check, call {finding.call}"),
            ("Step", step),
            ("Operator", finding.op or ""),
            ("The candidate ran", subject.ours or ""),
            ("Candidate's module", finding.candidate_module),
            ("Rank", "" if finding.rank is None else str(finding.rank)),
            ("Software of the candidate's run", known),
            ("Written with", f"torch {torch.__version__}, Python {sys.version.split()[0]}"),
        )
    )


def _allowed(subject: Subject, bench: Bench) -> Tensor:
    """Return `[*]` float64: how far from the oracle a value may be.

    What the rules let pass for another reason (a value that overflows either way) is allowed as it is.
    """
    edge, account = subject.edge, subject.account
    apart = (edge.cand.data.to(torch.float64) - edge.exact.to(torch.float64)).abs()
    apart = apart.nan_to_num(nan=torch.inf, posinf=torch.inf)
    if account is None:
        return torch.zeros_like(apart)
    band = account.band
    whole = torch.ones(edge.exact.shape, dtype=torch.bool)
    sigma, bound = (selected_values(x, whole).reshape(edge.exact.shape) for x in (band.sigma, band.bound))
    allowed = ulp(edge.exact, format_of(edge.cand.data.dtype)) / 2 + bound + bench.multiplier(band) * sigma
    allowed = allowed.nan_to_num(nan=torch.inf, posinf=torch.inf)
    inside = torch.ones_like(whole)
    if account.assessment.arm in (Arm.MAX, Arm.CLASS):
        inside[account.assessment.outside.unbind(-1)] = False
    return torch.where(inside, torch.maximum(allowed, apart), allowed)


def _slope(subject: Subject) -> _Slope | None:
    """Return the direction along which all elements together are off, where that is what the finding says."""
    edge, account = subject.edge, subject.account
    if account is None or account.assessment.arm is not Arm.GAIN:
        return None
    assessment, replays = account.assessment, subject.code.replays
    direction = edge.exact
    if assessment.constant is not None and replays is not None:
        direction = replays.sensitivity(assessment.constant)[edge.key]
    fmt = format_of(edge.cand.data.dtype)
    use = torch.zeros(edge.exact.shape, dtype=torch.bool)
    use[assessment.outside.unbind(-1)] = True
    if assessment.constant is not None:
        use = torch.ones_like(use)
    cand = edge.cand.data.to(torch.float64)
    use &= edge.exact.isfinite() & cand.isfinite() & direction.isfinite()
    if subject.judged is not None:
        use &= subject.judged
    sigma = selected_values(account.band.sigma, torch.ones_like(use)).reshape(use.shape)
    weight = (1 / (ulp(edge.exact, fmt).square() / 12 + sigma.square())) * use
    found = gain(
        difference=(cand - edge.exact)[use],
        reference=direction[use],
        weight=weight[use],
        rows=rows_of(use.nonzero(), edge.cand.dims),
        values=magnitudes(cand[use], fmt),
    )
    error = abs(found.gain / found.z) if found.z else 0.0
    floor = fmt.unit_roundoff if assessment.constant is not None else 0.0
    floor = floor or max(gain_floor(edge.exact[use], sigma[use], fmt), account.band.coherent)
    return _Slope(direction=direction.nan_to_num(0.0), weight=weight, limit=max(GAIN_Z * error, floor))
