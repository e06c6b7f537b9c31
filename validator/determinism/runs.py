"""Run the variants of one number of ranks and capture each, in a single launch.

Building and starting costs more than running, so that all variants that anybody asks for are run at once. One
that the candidate can't do, such as a batch of another size, ends the launch; those after it get another.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from validator.capturing.reader import Capture, open_capture
from validator.determinism.jobs import Job
from validator.determinism.on_rank import run_on_rank
from validator.determinism.variants import Variant
from validator.errors import IncompleteCaptureError, LaunchError, TargetError, ValidatorError
from validator.launch import launch

__all__ = ["Launcher", "NotBuiltError", "RunSet", "run_variants", "start_ranks"]

Launcher = Callable[[Callable[..., None], Job, int], None]
"""Calls `function(rank, world_size, job)` on so many ranks."""


class NotBuiltError(TargetError):
    """A candidate that can't be built on so many ranks, or ranks that this machine doesn't have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSet:
    """Captures of variants on one number of ranks.

    Attributes:
        job: what was run.
        world_size: number of ranks.
        variants: those that were run, by name.
        failures: why the candidate can't do the others, in one line, by name.
        launcher: how further ones can be run.
    """

    job: Job
    world_size: int
    variants: dict[str, Variant]
    failures: dict[str, str] = field(default_factory=dict)
    launcher: Launcher

    def capture(self, name: str) -> Capture:
        """Open a variant's capture.

        Raises:
            TargetError: the candidate can't do it.
        """
        if name in self.failures:
            raise TargetError(self.failures[name])
        return open_capture(self.job.folder / name)

    def site(self) -> str | None:
        """Return the module where controls were planted, or None where there was none."""
        return self.job.chosen_site

    def more(self, *variants: Variant) -> "RunSet":
        """Run further variants, in a folder of their own."""
        folder = Path(tempfile.mkdtemp(dir=self.job.folder))
        job = replace(self.job, folder=folder, variants=variants, site=self.job.chosen_site)
        return run_variants(job, nproc=self.world_size, launcher=self.launcher)


def start_ranks(function: Callable[..., None], job: Job, nproc: int) -> None:
    """Call `function(rank, world_size, job)`: a single rank in this process, more in new ones."""
    if nproc == 1:
        function(0, 1, job)
        return
    launch(function, (job,), nproc=nproc, timeout_s=None, device=(job.device or "cpu").partition(":")[0])


def run_variants(job: Job, *, nproc: int, launcher: Launcher = start_ranks) -> RunSet:
    """Run variants of a candidate on ranks.

    Args:
        job: what to run; its folder exists.
        nproc: number of ranks.
        launcher: starts them.

    Returns:
        The captures, and why there is none of what the candidate can't do.

    Raises:
        NotBuiltError: the candidate can't be built.
        ValidatorError: it can't do the first variant, or a run fails for a reason that is not its own.
    """
    failures: dict[str, str] = {}
    pending = job.variants
    while pending:
        error = _launched(replace(job, variants=pending, site=job.chosen_site), nproc, launcher)
        failed = next((variant for variant in pending if not job.has_ended(variant)), None)
        if failed is None:
            break
        if failed is job.variants[0] or not _is_its_own(error, failed):
            raise error or IncompleteCaptureError(f"{failed.name} left no capture")
        failures[failed.name] = str(error).partition("\n")[0]
        pending = pending[pending.index(failed) + 1 :]
    told = {variant.name: job.why_not(variant) for variant in job.variants}
    failures |= {name: why for name, why in told.items() if why is not None}
    done = {variant.name: variant for variant in job.variants if variant.name not in failures}
    return RunSet(job=job, world_size=nproc, variants=done, failures=failures, launcher=launcher)


def _launched(job: Job, nproc: int, launcher: Launcher) -> ValidatorError | None:
    """Run variants until one fails, and return what it failed with."""
    try:
        launcher(run_on_rank, job, nproc)
    except ValidatorError as error:
        if not job.was_built:
            raise NotBuiltError(str(error)) from error
        return error
    return None


def _is_its_own(error: ValidatorError | None, variant: Variant) -> bool:
    """Tell whether it is the candidate that failed; with memory filled, one that dies has read some of it."""
    return isinstance(error, TargetError) or (variant.is_filled and isinstance(error, LaunchError))
