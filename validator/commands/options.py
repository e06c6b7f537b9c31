"""Options that several commands have, spelt and explained once."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Baselines",
    "CardCounts",
    "CsvFile",
    "Device",
    "Dtype",
    "Exclude",
    "HtmlFile",
    "HtmlTables",
    "Include",
    "JsonFile",
    "LevelName",
    "MarkdownFile",
    "Nproc",
    "Plant",
    "RecipeName",
    "Target",
    "TensorParallel",
    "Timeout",
]

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="Python file with reference, candidate and inputs; or a checkpoint."
    ),
]
Nproc = Annotated[int, typer.Option("--nproc", min=1, metavar="N", help="Ranks to launch the candidate on.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="D", help="The candidate's device, such as cuda.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="T", help="The candidate's dtype, such as bfloat16.")
]
TensorParallel = Annotated[
    int | None,
    typer.Option("--tp", min=1, metavar="N", help="Tensor-parallel size, for a checkpoint folder."),
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Only modules of these names; may be repeated."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="No modules of these names; may be repeated."),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe", metavar="R", help="What the device may round: fused, eager, tf32, bf16-partials, ..."
    ),
]
CardCounts = Annotated[
    str | None,
    typer.Option("--card-counts", metavar="1,2,...", help="Numbers of ranks that suites compare."),
]
Baselines = Annotated[
    Path | None,
    typer.Option(
        "--baselines",
        metavar="FOLDER",
        help="Where baselines are (default: that of [tool.validator], else ./baselines).",
    ),
]
LevelName = Annotated[
    str,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help="How much of each tensor of the candidate is kept: full, sample (about 1%) or stats.",
    ),
]
Plant = Annotated[
    str | None,
    typer.Option(
        "--plant",
        metavar="FAULT",
        help="Plant a fault in the candidate first, such as attn-scale:layer=3; see `validator faults`.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=1, metavar="SECONDS", help="Give up on a run that takes longer."),
]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout, without text."),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write one page with figures; it opens without a network."),
]
HtmlTables = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write one page of tables; it opens without a network."),
]
CsvFile = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="Write the figures as a table, such as one row an edge."),
]
MarkdownFile = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="FILE", help="Write a summary, such as for a pull request comment."),
]
