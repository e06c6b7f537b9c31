"""Run one side of a target and capture it, here or on ranks of this machine."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from validator.capturing.noise import NoiseSource
from validator.capturing.outline import classes_of, outline
from validator.capturing.session import capture_run
from validator.capturing.values import rebuild
from validator.checks.propagation import Propagation
from validator.errors import UsageError
from validator.faults import parse
from validator.launch import launch
from validator.numerics.recipes import EAGER, RECIPES, Recipe
from validator.target import Target, floating_dtype, load_target
from validator.torchrun import Launched, joined, launched

__all__ = ["SideRun", "capture_side", "copied", "feed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRun:
    """One run of one side, as a new process can be told of it.

    Attributes:
        source: the target's path.
        side: `"reference"` or `"candidate"`.
        output: where the capture goes.
        nproc: number of ranks.
        device, dtype, tp: options of the candidate.
        include, exclude: globs of module names.
        operators: globs of modules whose operators are captured as well.
        is_outline: leave out what lies inside of repeated layers, which the model's own structure tells.
        overwrite: replace a capture of that name.
        proof: run without hooks too, and compare.
        recipe: name of the declared recipe.
        noise: stochastic runs of a candidate of `dtype` to measure the reference's noise with, or None.
        level: how much of each tensor is kept.
        timeout_s: seconds that the run may take, or None for no limit.
        plant: a fault to plant in the candidate first, as `validator.faults.parse` reads it.
        inputs: a file of `torch.save` with inputs in place of the target's own, or None.
    """

    source: str
    side: str
    output: Path
    nproc: int = 1
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    is_outline: bool = False
    overwrite: bool = False
    proof: bool = True
    recipe: str | None = None
    noise: int | None = None
    level: str = "full"
    timeout_s: float | None = None
    plant: str | None = None
    inputs: Path | None = None

    def load(self) -> Target:
        """Load the target with this run's options."""
        if self.side == "candidate":
            target = load_target(self.source, device=self.device, dtype=self.dtype, tp=self.tp)
        else:
            target = load_target(self.source)
        return target if self.inputs is None else target.fed_from(self.inputs)

    def command(self, *, recipe: str | None = None) -> str:
        """Return the `validator check` that runs this candidate, all of its modules, for messages.

        Args:
            recipe: what was declared besides the target; None for nothing.
        """
        words = ["validator", "check", self.source]
        for name, value in (("nproc", self.nproc if self.nproc > 1 else None), ("device", self.device)):
            words += [] if value is None else [f"--{name}", str(value)]
        for name, value in (("dtype", self.dtype), ("tp", None if self.tp is None else str(self.tp))):
            words += [] if value is None else [f"--{name}", value]
        for name, value in (("recipe", recipe), ("plant", self.plant)):
            words += [] if value is None else [f"--{name}", value]
        return shlex.join(words)


def capture_side(run: SideRun, target: Target, model: nn.Module | None = None) -> None:
    """Run one side and capture it.

    Args:
        run: what to run.
        target: the target, loaded in this process with `run.load()`.
        model: the side's model, where it is built already and `run` has one rank.

    Raises:
        ValidatorError: the target fails, or the capture can't be written.
        LaunchError: a rank failed, died, or took too long.
    """
    target.require(run.side)
    me = launched()
    if me is not None:
        _check_launched(run, me)
        with joined(_device_kind(run)):
            _capture(run, target, model)
        return
    if run.nproc == 1 and run.timeout_s is None:
        _capture(run, target, model)
        return
    if run.nproc > 1 and run.output.name.endswith(".h5"):
        raise UsageError(
            f"{run.output} is one file, for one rank, and --nproc is {run.nproc}: give a name without .h5"
        )
    launch(_capture_rank, (run,), nproc=run.nproc, timeout_s=run.timeout_s, device=_device_kind(run))


def copied(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs that a run may change in place."""
    fresh: dict[str, Any] = rebuild(inputs, lambda _, leaf: leaf.clone() if hasattr(leaf, "clone") else leaf)
    return fresh


def feed(target: Target, inputs: dict[str, Any], model: nn.Module, side: str = "reference") -> Any:
    """Run a model on fresh copies of the inputs, as the target says."""
    return target.run(model, copied(inputs), side=side)


def _device_kind(run: SideRun) -> str:
    return (run.device or "cpu").partition(":")[0]


def _check_launched(run: SideRun, me: Launched) -> None:
    """Refuse what can't be done by a rank of a run that is somebody else's."""
    if run.side == "reference":
        raise UsageError(
            f"this process is {me}, and the reference runs in one process of its own. Start only `validator "
            f"capture {run.source}:candidate -o NAME` with torchrun, and judge NAME afterwards, outside of "
            "it, with `validator check --capture NAME`"
        )
    if run.nproc > 1 or run.timeout_s is not None:
        raise UsageError(
            f"this process is {me}, which starts and ends the ranks: leave out --nproc and --timeout"
        )


def _capture_rank(rank: int, world_size: int, run: SideRun) -> None:
    _capture(run, run.load(), None)


def _capture(run: SideRun, target: Target, model: nn.Module | None) -> None:
    if model is None:
        model = target.candidate() if run.side == "candidate" else target.reference()
    planned = None if run.plant is None else parse(run.plant)
    if planned is not None:
        planned.plant(model)
    inputs = target.inputs()
    capture_run(
        lambda: feed(target, inputs, model, run.side),
        model,
        run.output,
        proof=run.proof,
        noise=None if run.noise is None else _noise_source(run, run.noise, target, model, inputs),
        include=run.include or None,
        exclude=(*run.exclude, *(outline(classes_of(model)).insides if run.is_outline else ())) or None,
        overwrite=run.overwrite,
        operators=run.operators or None,
        level=run.level,
        recipe=run.recipe,
        planted=None if planned is None else planned.note,
        inputs=inputs,
    )


def _noise_source(
    run: SideRun, runs: int, target: Target, model: nn.Module, inputs: dict[str, Any]
) -> NoiseSource:
    dtype = None if run.dtype is None else floating_dtype(run.dtype)

    def source(keeps: Callable[[str, int], bool], folder: Path) -> Propagation:
        return Propagation(
            model=model,
            run=lambda: feed(target, inputs, model, run.side),
            recipe=_allowed(run, target),
            dtype=dtype,
            runs=runs,
            keeps=keeps,
            folder=folder,
        )

    return source


def _allowed(run: SideRun, target: Target) -> Recipe:
    """Return what a candidate may round: the loosest recipe that is allowed where none is declared."""
    if run.recipe in RECIPES:
        return RECIPES[run.recipe]
    return target.recipe or EAGER
