"""`validator bisect`: the first layer that goes wrong, then the module in it, then the operator."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands.files import ResultFiles
from validator.commands.options import (
    CsvFile,
    Device,
    Dtype,
    JsonFile,
    MarkdownFile,
    Nproc,
    Plant,
    RecipeName,
    Target,
    TensorParallel,
    Timeout,
)
from validator.commands.running import one_message
from validator.terminal import progress_bars, target_output_on_stderr

if TYPE_CHECKING:
    from validator.report.shown import Shown

__all__ = ["bisect"]


def bisect(
    target: Target,
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    recipe: RecipeName = None,
    module: Annotated[
        str | None,
        typer.Option("--module", metavar="FQN", help="Only this module of the reference, and what it holds."),
    ] = None,
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="NAME", help="Search this capture; run no candidate.")
    ] = None,
    json_path: JsonFile = None,
    html_path: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write one page with figures (--swap: of tables); it opens without a network.",
        ),
    ] = None,
    csv_path: CsvFile = None,
    markdown_path: MarkdownFile = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="FOLDER", help="Keep each step here, and go on from what is there."),
    ] = None,
    timeout: Timeout = None,
    plant: Plant = None,
    repro: Annotated[
        Path | None,
        typer.Option(
            "--repro", metavar="FOLDER", help="Write a script that shows the first fault with torch alone."
        ),
    ] = None,
    swap: Annotated[
        bool,
        typer.Option(
            "--swap", help="Mix both sides' modules: which set of them makes the candidate so different?"
        ),
    ] = False,
    options: Annotated[
        Path | None,
        typer.Option(
            "--options", metavar="TOML", help="As --swap, over switches of the candidate that a file names."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="M",
            help="With --swap: kl (default), kl-max, perplexity, flips or token:POSITION.",
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option("--limit", metavar="X", help="With --swap: what the set has to show, in M's unit."),
    ] = None,
) -> None:
    """Find the first module that goes wrong, where capturing everything is too much.

    Captures what lies between the layers first, then the inside of the guilty one. With --swap, finds the
    smallest set of modules that many small errors come from. Loading a target runs its code. Exit codes: 0
    aligned, 1 divergent or undeclared precision, 2 could not compare, 3 inconclusive.
    """
    files = ResultFiles(json=json_path, html=html_path, csv=csv_path, markdown=markdown_path)
    with one_message():
        files.clear(
            read={"the target": target, "the capture": capture, "the options": options},
            folders={"--keep": keep, "--repro": repro},
        )
    result: Shown
    with one_message(json_path):
        with target_output_on_stderr(), progress_bars() as progress:
            if swap or options is not None or metric is not None or limit is not None:
                from validator.target_swap import swap_target

                result = swap_target(
                    target,
                    is_asked=swap,
                    nproc=nproc,
                    device=device,
                    dtype=dtype,
                    tp=tp,
                    metric=metric,
                    limit=limit,
                    options=options,
                    module=module,
                    recipe=recipe,
                    plant=plant,
                    timeout_s=timeout,
                    progress=progress,
                    capture=capture,
                    keep=keep,
                    repro=repro,
                )
            else:
                from validator.api import bisect_target

                result = bisect_target(
                    target,
                    nproc=nproc,
                    device=device,
                    dtype=dtype,
                    tp=tp,
                    recipe=recipe,
                    module=module,
                    capture=capture,
                    keep=keep,
                    timeout_s=timeout,
                    plant=plant,
                    repro=repro,
                    profiles=html_path is not None,
                    progress=progress,
                )
        files.hand_out(result)
    raise typer.Exit(result.exit_code)
