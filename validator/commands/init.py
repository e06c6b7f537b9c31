"""`validator init`: what a repository needs to test its port."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from validator.commands.running import one_message
from validator.terminal import write_stdout

__all__ = ["init"]


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Root of the repository; default: here.")
    ] = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are there; pyproject.toml is only added to.")
    ] = False,
) -> None:
    """Write a target file, its settings, a test and a CI job, which work as they are.

    Exit codes: 0 written, 2 a file is there already or can't be written, and nothing was.
    """
    with one_message():
        from validator.testing.scaffold import scaffold

        written = scaffold(folder, force=force)
    width = max(len(file.path) for file in written)
    lines = [f"{file.path:{width}}  {file.how}" for file in written]
    cd = "" if folder == Path() else f"cd {folder} && "
    lines += ["", f"next: {cd}pytest, then put your model and your port into port.py"]
    if importlib.util.find_spec("transformers") is None:
        lines.append("port.py needs transformers as it stands: pip install 'accuracy-validator[hf]'")
    write_stdout("\n".join(lines) + "\n")
