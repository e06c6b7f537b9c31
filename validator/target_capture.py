"""Run one side of a target and store it."""

from dataclasses import replace
from pathlib import Path

from validator.checks.propagation import FEWEST_RUNS
from validator.errors import UsageError
from validator.numerics.recipes import recipe_named
from validator.runs import SideRun, capture_side

__all__ = ["capture_target", "require_runs"]


def capture_target(
    source: str,
    side: str,
    output: Path,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    overwrite: bool = False,
    proof: bool = True,
    timeout_s: float | None = None,
    recipe: str | None = None,
    noise: int | None = None,
    level: str = "full",
    plant: str | None = None,
) -> Path:
    """Run one side of a target, capture it, and return where.

    Args:
        source: a Python file or a checkpoint folder.
        side: `"reference"` or `"candidate"`.
        output: a folder, or a name that ends in `.h5` for a run of one rank.
        nproc: as for `check_target`, like the next six.
        device: of the candidate.
        dtype: of the candidate; with `noise`, which the reference's noise is that of.
        tp: of the candidate.
        include: globs.
        exclude: globs.
        timeout_s: seconds that the run may take.
        overwrite: replace a capture of that name once the new one is complete.
        proof: run without hooks too, and compare.
        recipe: what the device may round, a name as of `check`; default the target's own, else both are
            allowed. Recorded; with `noise`, what the noise is of.
        noise: store with the reference what rounding carries to each tensor of a candidate, measured by so
            many stochastic runs (8 to 16), so that `compare` can judge.
        level: how much of each tensor is kept: `full`, `sample` or `stats`; see `validator.capture`.
        plant: a fault to plant in the candidate first, as `validator.faults.parse` reads it.

    Raises:
        ValidatorError: the side can't be run or captured.
    """
    if side == "reference" and (nproc, device, tp) != (1, None, None):
        raise UsageError(
            "the reference runs as it is, in one process: leave out --nproc, --device and --tp, "
            f"or capture {source}:candidate"
        )
    if side == "reference" and dtype is not None and noise is None:
        raise UsageError(
            f"the reference runs as it is: leave out --dtype, or capture {source}:candidate. With --noise it "
            "says which candidate's noise to measure"
        )
    if side == "reference" and plant is not None:
        raise UsageError(
            f"--plant {plant} would spoil the reference, which is trusted: write {source}:candidate"
        )
    if noise is not None:
        require_runs(source, side, noise)
    declared = recipe_named(recipe)
    run = SideRun(
        source=source,
        side=side,
        output=output,
        nproc=nproc,
        device=device,
        dtype=dtype,
        tp=tp,
        include=include,
        exclude=exclude,
        overwrite=overwrite,
        proof=proof,
        noise=noise,
        level=level,
        timeout_s=timeout_s,
        plant=plant,
    )
    target = run.load()
    declared = declared or target.recipe
    capture_side(replace(run, recipe=None if declared is None else declared.name), target)
    return output


def require_runs(source: str, side: str, noise: int) -> None:
    """Refuse to measure noise on a candidate, or by fewer runs than a judgement takes.

    Raises:
        UsageError: in either case.
    """
    if side != "reference":
        raise UsageError(
            f"--noise {noise} belongs to the reference, which a candidate is compared with: "
            f"write {source}:reference"
        )
    if noise < FEWEST_RUNS:
        raise UsageError(
            f"--noise {noise} is too few stochastic runs to judge by: give {FEWEST_RUNS} or more, such as 12"
        )
