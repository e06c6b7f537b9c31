"""`validator capture`: run one side of a target and store it."""

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.options import (
    Device,
    Dtype,
    Exclude,
    Include,
    LevelName,
    Nproc,
    Plant,
    RecipeName,
    TensorParallel,
    Timeout,
)
from validator.commands.running import one_message
from validator.errors import UsageError
from validator.terminal import target_output_on_stderr, write_stdout

__all__ = ["capture", "split_side"]

_SIDES = ("reference", "candidate")


def capture(
    target: Annotated[
        str, typer.Argument(metavar="TARGET[:SIDE]", help="Target; SIDE is candidate (default) or reference.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="NAME", help="Folder, or an .h5 file for one rank.")
    ],
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    include: Include = None,
    exclude: Exclude = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a capture of that name.")] = False,
    no_proof: Annotated[
        bool, typer.Option("--no-proof", help="Don't run again to prove that looking changed nothing.")
    ] = False,
    timeout: Timeout = None,
    recipe: RecipeName = None,
    noise: Annotated[
        int | None,
        typer.Option(
            "--noise",
            metavar="K",
            help="With the reference: store what rounding carries to each tensor of a candidate of --dtype, "
            "measured by K stochastic runs (8 to 16), so that compare can judge.",
        ),
    ] = None,
    level: LevelName = "full",
    plant: Plant = None,
) -> None:
    """Run one side of a target and store it."""
    with one_message():
        source, side = split_side(target)
        with target_output_on_stderr():
            from validator.api import capture_target

            path = capture_target(
                source,
                side,
                output,
                nproc=nproc,
                device=device,
                dtype=dtype,
                tp=tp,
                include=tuple(include or ()),
                exclude=tuple(exclude or ()),
                overwrite=overwrite,
                proof=not no_proof,
                timeout_s=timeout,
                recipe=recipe,
                noise=noise,
                level=level,
                plant=plant,
            )
    write_stdout(f"{path}\n")


def split_side(target: str, *, default: str = "candidate") -> tuple[str, str]:
    """Split `port.py:reference` into path and side; a path may hold colons of its own.

    Raises:
        UsageError: there is no such side.
    """
    source, colon, side = target.rpartition(":")
    if not colon or Path(target).exists():
        return target, default
    if side in _SIDES:
        return source, side
    if Path(source).exists():
        raise UsageError(f"no side {side!r} in {target!r}: write {source}:candidate or {source}:reference")
    return target, default
