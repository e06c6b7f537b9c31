"""Run the variants of one number of ranks and capture each, in a single launch.

Building and starting costs more than running, so that all variants that anybody asks for are run at once.
"""

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from validator.capturing.reader import Capture, open_capture
from validator.capturing.session import capture_run
from validator.determinism.batches import NotBatchedError
from validator.determinism.controls import JUDGED, planted, site_of
from validator.determinism.feeding import feed_variant
from validator.determinism.uninitialised import FillUninitialised
from validator.determinism.variants import Variant
from validator.errors import IncompleteCaptureError, ValidatorError
from validator.launch import launch
from validator.target import Target, load_target

__all__ = ["Job", "Launcher", "RunSet", "run_variants", "start_ranks"]

Launcher = Callable[[Callable[..., None], "Job", int], None]
"""Calls `function(rank, world_size, job)` on so many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every rank is told.

    Attributes:
        source: the target's path.
        folder: where captures go, one a variant, by its name.
        variants: to run, in this order.
        device, dtype, tp: options of the candidate.
        site: fqn of the module where controls are planted; None to choose one.
    """

    source: str
    folder: Path
    variants: tuple[Variant, ...]
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
    site: str | None = None

    def load(self) -> Target:
        """Load the target."""
        return load_target(self.source, device=self.device, dtype=self.dtype, tp=self.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSet:
    """Captures of variants on one number of ranks.

    Attributes:
        job: what was run.
        world_size: number of ranks.
        variants: those that were run, by name.
        failures: why others were not, by name.
        launcher: how further ones can be run.
    """

    job: Job
    world_size: int
    variants: dict[str, Variant]
    failures: dict[str, str] = field(default_factory=dict)
    launcher: Launcher
    scratch: Any = field(default=None, repr=False, compare=False)

    def capture(self, name: str) -> Capture:
        """Open a variant's capture."""
        return open_capture(self.job.folder / name)

    def site(self) -> str | None:
        """Return the module where controls were planted, or None where there was none."""
        path = self.job.folder / "site"
        return path.read_text(encoding="utf-8") or None if path.exists() else None

    def more(self, *variants: Variant) -> "RunSet":
        """Run further variants, in a folder of their own."""
        folder = Path(tempfile.mkdtemp(dir=self.job.folder))
        return run_variants(
            Job(
                source=self.job.source,
                folder=folder,
                variants=variants,
                device=self.job.device,
                dtype=self.job.dtype,
                tp=self.job.tp,
                site=self.site(),
            ),
            nproc=self.world_size,
            launcher=self.launcher,
        )


def start_ranks(function: Callable[..., None], job: Job, nproc: int) -> None:
    """Call `function(rank, world_size, job)`: a single rank in this process, more in new ones."""
    if nproc == 1:
        function(0, 1, job)
        return
    launch(function, (job,), nproc=nproc, timeout_s=None, device=(job.device or "cpu").partition(":")[0])


def run_variants(job: Job, *, nproc: int, launcher: Launcher = start_ranks, scratch: Any = None) -> RunSet:
    """Run variants of a candidate on ranks.

    Args:
        job: what to run; its folder exists.
        nproc: number of ranks.
        launcher: starts them.
        scratch: kept as long as what is returned, such as the temporary folder itself.

    Returns:
        The captures. A run that fails once its memory is filled is one of the `failures`.

    Raises:
        ValidatorError: a run fails for another reason.
    """
    failed: ValidatorError | None = None
    try:
        launcher(_run_on_rank, job, nproc)
    except ValidatorError as error:
        failed = error
    failures: dict[str, str] = {}
    for variant in job.variants:
        note = job.folder / f"{variant.name}.why"
        if note.exists():
            failures[variant.name] = note.read_text(encoding="utf-8")
        elif not _is_complete(job.folder / variant.name):
            if failed is None or not variant.is_filled:
                raise failed or IncompleteCaptureError(f"{variant.name} left no capture")
            failures[variant.name] = str(failed)
    done = {variant.name: variant for variant in job.variants if variant.name not in failures}
    return RunSet(
        job=job, world_size=nproc, variants=done, failures=failures, launcher=launcher, scratch=scratch
    )


def _is_complete(path: Path) -> bool:
    try:
        open_capture(path)
    except ValidatorError:
        return False
    return True


def _run_on_rank(rank: int, world_size: int, job: Job) -> None:
    """Be one rank."""
    target = job.load()
    inputs = target.inputs()
    model: nn.Module | None = None
    site = job.site
    for variant in job.variants:
        with FillUninitialised() if variant.is_filled else contextlib.nullcontext():
            if model is None or variant.is_rebuilt:
                model = None
                model = target.candidate()
            if site is None and not variant.is_filled:
                site = _site(target, inputs, model, job, rank)
            try:
                _capture(target, inputs, model, variant, job, site=site, rank=rank)
            except NotBatchedError as error:  # the same on every rank
                if rank == 0:
                    (job.folder / f"{variant.name}.why").write_text(str(error), encoding="utf-8")


def _site(target: Target, inputs: dict[str, Any], model: nn.Module, job: Job, rank: int) -> str:
    """Choose the module for controls, and write its name down; empty where there is none."""
    first = next((variant for variant in job.variants if not variant.is_filled), job.variants[0])
    found = site_of(model, lambda: feed_variant(target, inputs, model, first, "candidate")) or ""
    if rank == 0:
        (job.folder / "site").write_text(found, encoding="utf-8")
    return found


def _capture(
    target: Target,
    inputs: dict[str, Any],
    model: nn.Module,
    variant: Variant,
    job: Job,
    *,
    site: str | None,
    rank: int,
) -> None:
    if variant.control is not None and not site:
        raise NotBatchedError("the candidate has no matrix that it calls once, to plant a control at")
    plant = (
        contextlib.nullcontext()
        if variant.control is None or not site
        else planted(model, site, variant.control, rank=rank)
    )
    with plant:
        capture_run(
            lambda: feed_variant(target, inputs, model, variant, "candidate"),
            model,
            job.folder / variant.name,
            proof=False,
            include=variant.include or (None if variant.control not in JUDGED or not site else (site,)),
            operators=variant.operators or None,
            planted=None if variant.control is None else f"control: {variant.control} at {site}",
            inputs=inputs,
        )
