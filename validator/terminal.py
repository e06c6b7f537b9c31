"""Which stream gets what: results alone on stdout; what targets print, and progress, on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from validator.errors import TargetError

__all__ = ["progress_bars", "show", "target_output_on_stderr", "write_stdout"]


def write_stdout(text: str) -> None:
    """Write a result; a reader that has gone (`| head`) must not change the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(renderable: Any) -> None:
    """Write something rich on stdout, with colours if that is a terminal and `NO_COLOR` is not set."""
    console = Console()
    with console.capture() as captured:
        console.print(renderable)
    write_stdout(captured.get())


@contextmanager
def target_output_on_stderr() -> Iterator[None]:
    """Send to stderr what a target, its libraries and its ranks write to stdout.

    Raises:
        TargetError: the target called `sys.exit`; it must not choose our exit code, its 0 would mean aligned.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except SystemExit as error:
        raise TargetError(f"the target called sys.exit({error.code!r}); remove that call") from error
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Give a callback `(stage, done, total)` that draws one bar a stage on stderr.

    A total of 0 is one that is not known. Where stderr is no terminal nothing is drawn.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield update
