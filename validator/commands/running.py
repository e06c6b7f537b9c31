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

__all__ = ["EXIT_BUG", "Paths", "clear", "one_message", "write_json", "writing"]

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


Paths = Mapping[str, str | Path | None]
"""Files or folders by the words that a message calls them by; None is one that was not named."""


def clear(files: Paths, *, read: Paths, folders: Paths | None = None) -> None:
    """Find out before the work that files can't be written, and leave no older result in them.

    Where one can't be written all stay as they are.

    Args:
        files: where results go, by option; `-` as JSON is stdout.
        read: what the command reads, by its name: no result may take its place, nor that of a file in it.
        folders: what the command writes besides, by option: no result may take its place.

    Raises:
        UsageError: one can't be written, or would overwrite what is read, or another.
    """
    paths: dict[str, Path] = {}
    for option, name in files.items():
        if name is None or (option == "--json" and str(name) == "-"):
            continue
        if str(name) == "-":
            raise UsageError(f"{option} -: only --json writes to stdout; name a file")
        path = paths[option] = Path(name)
        taken = {f"what {other} writes": paths[other] for other in paths if other != option}
        taken |= {f"the folder of {other}": Path(at) for other, at in (folders or {}).items() if at}
        for what, other_path in taken.items():
            if path.resolve() == other_path.resolve():
                raise UsageError(f"{option} {str(path)!r} would overwrite {what}; name another file")
        _require_apart(option, path, read)
        _require_writable(option, path)
    for option, path in paths.items():
        with writing(option, path):
            if path.is_file():
                path.write_text("", encoding="utf-8")


def _require_apart(option: str, path: Path, read: Paths) -> None:
    """Refuse a file that the command reads, or one in a folder that it reads."""
    for what, name in read.items():
        if name is None or not str(name):
            continue  # an empty name is no file, and would be the folder that we are in
        other = Path(name).resolve()
        if path.resolve() == other:
            raise UsageError(f"{option} {str(path)!r} would overwrite {what}; name another file")
        if path.exists() and path.resolve().is_relative_to(other):
            raise UsageError(f"{option} {str(path)!r} would overwrite a file of {what}; name another file")


def _require_writable(option: str, path: Path) -> None:
    """Open the file as if to write more to it, and change nothing."""
    with writing(option, path):
        is_new = not path.exists()
        if is_new or path.is_file() or path.is_dir():  # others are pipes and devices
            path.open("ab").close()
        if is_new:
            path.resolve().unlink()


def write_json(json_path: str, document: dict[str, Any]) -> None:
    """Write a result where `--json` says: a file, or stdout for `-`."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if json_path == "-":
        write_stdout(text)
    else:
        with writing("--json", Path(json_path), begun=True):
            Path(json_path).write_text(text, encoding="utf-8")


@contextmanager
def writing(option: str, path: Path, *, begun: bool = False) -> Iterator[None]:
    """Turn an error of the file system into a message that names the option.

    Where the file is `begun` by then, as on a disk that is full, no half of a result is left in it.
    """
    try:
        yield
    except OSError as error:
        if begun and path.is_file():
            with suppress(OSError):
                path.write_text("", encoding="utf-8")
        raise UsageError(
            f"{option} can't write {str(path)!r}: {error.strerror}; name a file that you may write"
        ) from None
