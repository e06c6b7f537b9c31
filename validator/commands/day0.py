"""`validator day0`: all that must hold of a port, in one command."""

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.options import (
    CardCounts,
    Device,
    Dtype,
    JsonFile,
    RecipeName,
    Target,
    TensorParallel,
)
from validator.commands.running import clear, one_message, write_json
from validator.terminal import progress_bars, show, target_output_on_stderr

__all__ = ["day0"]


def day0(
    target: Target,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, metavar="N", help="Ranks to launch the candidate on.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    recipe: RecipeName = None,
    card_counts: CardCounts = None,
    keep: Annotated[
        Path, typer.Option("--keep", metavar="FOLDER", help="For reports and what is remembered.")
    ] = Path("day0"),
    long: Annotated[bool, typer.Option("--long", help="Run the long versions of suites.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Forget the stages that passed before.")] = False,
    json_path: JsonFile = None,
) -> None:
    """Ask all that must hold of a port: weights, layers, texts, determinism, long contexts, then speed.

    Stops at the first stage that does not pass and says what to do; run again, it goes on from there. It
    begins anew where the target, modules that it imports from its folder, settings, variables of the
    environment, the machine or versions are others; after a change of other files, give --restart.
    What is not given here is that of [tool.validator] in pyproject.toml.

    Exit codes: 0 all passed, 1 a stage failed, 2 one could not run, 3 one is left undecided.
    """
    with one_message():
        clear({"--json": json_path}, read={"the target": target}, folders={"--keep": keep})
    with one_message(json_path):
        with target_output_on_stderr(), progress_bars() as progress:
            from validator.day0.running import run_day0

            answer = run_day0(
                target,
                folder=keep,
                options={"nproc": nproc, "device": device, "dtype": dtype, "tp": tp, "recipe": recipe},
                card_counts=card_counts,
                long=long,
                fresh=restart,
                progress=progress,
            )
        if json_path is not None:
            write_json(json_path, answer.to_json())
        if json_path != "-":
            show(answer)
    raise typer.Exit(answer.exit_code)
