"""The command `validator`.

Exit codes: 0 aligned, 1 divergent or undeclared precision, 2 could not compare, 3 inconclusive;
70 (`EX_SOFTWARE`) for a bug of ours, so that it is never taken for a verdict, and 130 when interrupted.
Results go to stdout; logs, progress, errors and whatever a target prints go to stderr.

Nothing heavy is imported until a command runs: `validator --help` needs no torch.
"""

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from validator.commands.baseline import baseline
from validator.commands.bisecting import bisect
from validator.commands.capture import capture
from validator.commands.check import check
from validator.commands.compare import compare
from validator.commands.day0 import day0
from validator.commands.init import init
from validator.commands.inventory import inventory
from validator.commands.probe import probe
from validator.commands.report import report
from validator.commands.run import run
from validator.commands.showing import demo, faults
from validator.terminal import write_stdout

__all__ = ["app", "main"]

app = typer.Typer(
    help="Find the first operator of a ported or sharded model that rounding can't explain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    app(args=args, prog_name="validator")
    sys.exit(0)


def _show_version(value: bool) -> None:
    if value:
        write_stdout(f"validator {metadata.version('accuracy-validator')}\n")
        raise typer.Exit


@app.callback()
def _validator(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Find the first operator of a ported or sharded model that rounding can't explain."""


for command in (check, bisect, capture, compare, report, run, day0, inventory, probe, init, faults, demo):
    app.command()(command)
app.add_typer(baseline)
