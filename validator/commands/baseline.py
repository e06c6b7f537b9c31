"""`validator baseline`: record a run or figures, hold later ones to them, list and show what there is."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.capture import split_side
from validator.commands.options import (
    Baselines,
    Device,
    Dtype,
    Exclude,
    Include,
    JsonFile,
    LevelName,
    Nproc,
    Plant,
    RecipeName,
    TensorParallel,
    Timeout,
)
from validator.commands.running import clear, one_message, write_json
from validator.errors import UsageError
from validator.terminal import show, target_output_on_stderr

__all__ = ["baseline"]

baseline = typer.Typer(
    name="baseline",
    help="Keep a run or figures, and hold later ones to them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The baseline's name.")]
Figures = Annotated[
    Path | None,
    typer.Option(
        "--figures", metavar="FILE", help="Figures of a suite, as `validator run --json` writes them."
    ),
]


@baseline.command()
def record(
    name: Name,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET[:SIDE]",
            help="Target; SIDE is reference (default), or candidate to record both sides.",
        ),
    ] = None,
    figures: Figures = None,
    folder: Baselines = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace a baseline of that name, and say what changed.")
    ] = False,
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    recipe: RecipeName = None,
    include: Include = None,
    exclude: Exclude = None,
    level: LevelName = "full",
    noise: Annotated[
        int | None, typer.Option("--noise", metavar="K", help="Stochastic runs that measure the noise (12).")
    ] = None,
    timeout: Timeout = None,
) -> None:
    """Record what a target computes, or the figures of a suite.

    Exit codes: 0 recorded, 1 refused because the candidate is divergent, 2 could not record.
    """
    with one_message():
        place = _folder(folder)
        _one_of(target, figures)
        command = shlex.join(["validator", *sys.argv[1:]])
        with target_output_on_stderr():
            from validator.baselines.recording import RUNS, RunOptions, record_figures, record_run

            if figures is not None:
                recorded = record_figures(name, figures, folder=place, update=update, command=command)
            else:
                source, side = split_side(target or "", default="reference")
                recorded = record_run(
                    name,
                    source,
                    side,
                    folder=place,
                    options=RunOptions(
                        nproc=nproc,
                        device=device,
                        dtype=dtype,
                        tp=tp,
                        recipe=recipe,
                        include=tuple(include or ()),
                        exclude=tuple(exclude or ()),
                        level=level,
                        timeout_s=timeout,
                    ),
                    noise=RUNS if noise is None else noise,
                    update=update,
                    command=command,
                )
        show(recorded)
    raise typer.Exit(recorded.exit_code)


@baseline.command()
def check(
    name: Name,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="Target whose candidate is held to the baseline.")
    ] = None,
    figures: Figures = None,
    folder: Baselines = None,
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="The bits must be those of the recorded candidate.")
    ] = False,
    edges: Annotated[
        bool, typer.Option("--edges", help="Judge each module by itself too, with the target's reference.")
    ] = False,
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="NAME", help="Judge this capture; run no candidate.")
    ] = None,
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    timeout: Timeout = None,
    plant: Plant = None,
    json_path: JsonFile = None,
) -> None:
    """Run a target's candidate and hold it to a baseline; the reference is not needed.

    What is captured, and the recipe, are those that the baseline was recorded with.

    Exit codes: 0 aligned, 1 divergent, 2 could not compare (there is no such baseline), 3 inconclusive.
    """
    with one_message():
        place = _folder(folder)
        read = {"the target": target, "the figures": figures, "the capture": capture}
        clear({"--json": json_path}, read={"the baselines": place, **read})
    with one_message(json_path):
        _one_of(target, figures)
        with target_output_on_stderr():
            from validator.baselines.checking import check_figures, check_run
            from validator.baselines.recording import RunOptions

            if figures is not None:
                result = check_figures(name, figures, folder=place)
            else:
                result = check_run(
                    name,
                    target or "",
                    folder=place,
                    options=RunOptions(
                        nproc=nproc,
                        device=device,
                        dtype=dtype,
                        tp=tp,
                        timeout_s=timeout,
                        plant=plant,
                    ),
                    capture=capture,
                    demands_bits=bitwise,
                    by_edge=edges,
                )
        if json_path is not None:
            write_json(json_path, result.to_json())
        if json_path != "-":
            show(result)
    raise typer.Exit(result.exit_code)


@baseline.command("list")
def list_(folder: Baselines = None, json_path: JsonFile = None) -> None:
    """List the baselines of a folder."""
    with one_message():
        place = _folder(folder)
        clear({"--json": json_path}, read={"the baselines": place})
    with one_message(json_path):
        from validator.baselines.listing import listing, listing_json

        if json_path is not None:
            write_json(json_path, listing_json(place))
        if json_path != "-":
            show(listing(place))


@baseline.command("show")
def show_(name: Name, folder: Baselines = None, json_path: JsonFile = None) -> None:
    """Show what a baseline holds, and how it came about."""
    with one_message():
        place = _folder(folder)
        clear({"--json": json_path}, read={"the baselines": place})
    with one_message(json_path):
        from validator.baselines.listing import shown
        from validator.baselines.store import read_baseline

        found = read_baseline(name, place)
        if json_path is not None:
            from validator.report.json_report import plain

            write_json(json_path, plain(found.to_json()))
        if json_path != "-":
            show(shown(found))


def _folder(given: Path | None) -> Path:
    if given is not None:
        return given
    from validator.testing.settings import configured

    return configured(Path.cwd()).baselines


def _one_of(target: str | None, figures: Path | None) -> None:
    if (target is None) == (figures is None):
        raise UsageError("give a TARGET, to run it, or --figures FILE, and not both")
