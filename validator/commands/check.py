"""`validator check`: the whole job."""

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.files import ResultFiles
from validator.commands.options import (
    CsvFile,
    Device,
    Dtype,
    Exclude,
    HtmlFile,
    Include,
    JsonFile,
    LevelName,
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

__all__ = ["check"]


def check(
    target: Target,
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    recipe: RecipeName = None,
    include: Include = None,
    exclude: Exclude = None,
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="NAME", help="Judge this capture; run no candidate.")
    ] = None,
    json_path: JsonFile = None,
    html_path: HtmlFile = None,
    csv_path: CsvFile = None,
    markdown_path: MarkdownFile = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep both captures and all values here.")
    ] = None,
    timeout: Timeout = None,
    level: LevelName = "full",
    plant: Plant = None,
    repro: Annotated[
        Path | None,
        typer.Option(
            "--repro", metavar="FOLDER", help="Write a script that shows the first fault with torch alone."
        ),
    ] = None,
) -> None:
    """Judge every edge of the candidate against the float64 oracle.

    Loading a target runs its code. Exit codes: 0 aligned, 1 divergent or undeclared precision,
    2 could not compare, 3 inconclusive.
    """
    files = ResultFiles(json=json_path, html=html_path, csv=csv_path, markdown=markdown_path)
    with one_message():
        files.clear(
            read={"the target": target, "the capture": capture},
            folders={"--keep": keep, "--repro": repro},
        )
    with one_message(json_path):
        with target_output_on_stderr(), progress_bars() as progress:
            from validator.api import check_target

            result = check_target(
                target,
                nproc=nproc,
                device=device,
                dtype=dtype,
                tp=tp,
                recipe=recipe,
                include=tuple(include or ()),
                exclude=tuple(exclude or ()),
                capture=capture,
                keep=keep,
                timeout_s=timeout,
                level=level,
                plant=plant,
                repro=repro,
                profiles=html_path is not None,
                progress=progress,
            )
        files.hand_out(result)
    raise typer.Exit(result.exit_code)
