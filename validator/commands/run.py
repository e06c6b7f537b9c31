"""`validator run`: what must hold of a port, asked by suites, with a summary that a manager can read."""

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.options import (
    Baselines,
    CardCounts,
    Device,
    Dtype,
    JsonFile,
    RecipeName,
    TensorParallel,
)
from validator.commands.running import clear, one_message, write_json, writing
from validator.terminal import show

__all__ = ["run"]


def run(
    suites: Annotated[
        list[str] | None,
        typer.Argument(metavar="SUITE...", help="Suites that ship, such as alignment, or paths."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="T", help="The port; default: that of [tool.validator]."),
    ] = None,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, metavar="N", help="Ranks to launch the candidate on.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    recipe: RecipeName = None,
    card_counts: CardCounts = None,
    baselines: Baselines = None,
    reports: Annotated[
        Path | None, typer.Option("--reports", metavar="FOLDER", help="Write each result there as JSON.")
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(
            "--samples",
            metavar="FILE[,FILE]",
            help="Prompts with scores: of both sides, or lm-eval's of reference and candidate.",
        ),
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="Run the long versions.")] = False,
    json_path: JsonFile = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write pytest's JUnit report.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the summary as Markdown.")
    ] = None,
) -> None:
    """Run suites on a port through pytest, and sum up what they say.

    What pytest prints goes to stderr, the summary to stdout. Exit codes: 0 all holds, 1 a test failed, 2
    something could not run or nothing was compared, 3 something is left undecided.
    """
    options = {
        "target": target,
        "nproc": nproc,
        "device": device,
        "dtype": dtype,
        "tp": tp,
        "recipe": recipe,
        "baselines": baselines,
        "reports": reports,
        "card_counts": card_counts,
        "samples": samples,
        "long": long or None,
    }
    with one_message():
        named = {f"the suite {name}": Path(name.partition("::")[0]) for name in suites or []}
        read = {name: path for name, path in named.items() if path.is_file()}  # beside tests a result may lie
        clear(
            {"--json": json_path, "--junit": junit, "--markdown": markdown},
            read={**read, "the target": target},
            folders={"--reports": reports},
        )
    with one_message(json_path):
        from validator.testing.suites import run_suites

        summary = run_suites(suites or [], options=options, junit=junit)
        summary.require_sound()
        if json_path is not None:
            write_json(json_path, summary.to_json())
        from validator.testing.summary import summary_markdown, summary_screen

        if markdown is not None:
            with writing("--markdown", markdown):
                markdown.write_text(summary_markdown(summary), encoding="utf-8")
        if json_path != "-":
            show(summary_screen(summary))
    raise typer.Exit(summary.exit_code)
