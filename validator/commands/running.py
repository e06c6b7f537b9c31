"""What every command does besides its job: how it ends, and how it writes results."""

import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from validator.errors import UsageError, ValidatorError
from validator.terminal import write_stdout

__all__ = ["EXIT_BUG", "clear", "one_message", "write_json", "writing"]

EXIT_BUG = 70
_EXIT_NOT_COMPARED = 2


@contextmanager
def one_message(json_path: str | None = None) -> Iterator[None]:
    """End the command with a message on a user's mistake, and with the traceback on a bug of ours.

    Where JSON was asked for, a mistake is written there too. Bugs are caught here because an exception
    that nobody catches makes Python leave with 1, which means divergent.
    """
    try:
        yield
    except ValidatorError as error:
        typer.echo(f"error: {error}", err=True)
        if json_path is not None:
            from validator.report.json_report import error_json

            with suppress(UsageError):  # that the file can't be written any more comes second to the mistake
                write_json(json_path, error_json(error))
        raise typer.Exit(_EXIT_NOT_COMPARED) from None
    except Exception:
        traceback.print_exc()
        raise typer.Exit(EXIT_BUG) from None


def clear(option: str, path: Path, read: Mapping[str, str | Path]) -> None:
    """Find out before the work that a file can't be written, and leave no older result in it.

    `read` has what the command reads, by its name: no result may take its place, nor that of a file in it.
    """
    with writing(option, path):
        for name, other in read.items():
            if not str(other):
                continue  # an empty name is no file, and would be the folder that we are in
            if path.resolve() == Path(other).resolve():
                raise UsageError(f"{option} {str(path)!r} would overwrite {name}; name another file")
            if path.exists() and path.resolve().is_relative_to(Path(other).resolve()):
                raise UsageError(
                    f"{option} {str(path)!r} would overwrite a file of {name}; name another file"
                )
        path.write_text("", encoding="utf-8")


def write_json(json_path: str, document: dict[str, Any]) -> None:
    """Write a result where `--json` says: a file, or stdout for `-`."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if json_path == "-":
        write_stdout(text)
    else:
        with writing("--json", Path(json_path)):
            Path(json_path).write_text(text, encoding="utf-8")


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Turn an error of the file system into a message that names the option."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{option} can't write {str(path)!r}: {error.strerror}; name a file that you may write"
        ) from None
