"""`validator faults` and `validator demo`: what can be planted, and what finding it looks like."""

import typer

from validator.commands.running import EXIT_BUG, one_message
from validator.terminal import show

__all__ = ["demo", "faults"]


def faults() -> None:
    """List the faults that check --plant can plant."""
    with one_message():
        from validator.report.faults import faults_table

        show(faults_table())


def demo() -> None:
    """Check a healthy and a faulty port."""
    with one_message():
        from rich.console import Console

        from validator.demo import run_demo

        succeeded = run_demo(Console())
    if not succeeded:
        typer.echo("error: the demo did not find what it planted; please report what it printed", err=True)
        raise typer.Exit(EXIT_BUG)
