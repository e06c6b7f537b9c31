"""`validator bisect`: the first layer that goes wrong, then the module in it, then the operator."""

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.options import (
    Device,
    Dtype,
    HtmlFile,
    JsonFile,
    Nproc,
    Plant,
    RecipeName,
    Target,
    TensorParallel,
    Timeout,
)
from validator.commands.running import clear, one_message, write_json, writing
from validator.errors import UsageError
from validator.terminal import progress_bars, show, target_output_on_stderr

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
    html_path: HtmlFile = None,
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
    if json_path not in (None, "-"):
        with one_message():
            clear("--json", Path(json_path), {"the target": target})
    is_swapping = swap or options is not None or metric is not None or limit is not None
    if html_path is not None:
        with one_message(json_path):
            if is_swapping:
                raise UsageError("--html shows the edges that a search judged, and --swap judges none")
            clear("--html", html_path, {"the target": target})
    if is_swapping:
        with one_message(json_path):
            with target_output_on_stderr(), progress_bars() as progress:
                from validator.target_swap import swap_target

                swapped = swap_target(
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
            if json_path is not None:
                write_json(json_path, swapped.to_json())
            if json_path != "-":
                show(swapped)
        raise typer.Exit(swapped.exit_code)
    with one_message(json_path):
        with target_output_on_stderr(), progress_bars() as progress:
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
        if json_path is not None:
            write_json(json_path, result.to_json())
        if html_path is not None:
            with writing("--html", html_path):
                result.write_html(html_path)
        if json_path != "-":
            show(result)
    raise typer.Exit(result.exit_code)
