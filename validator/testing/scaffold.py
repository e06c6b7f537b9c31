"""Write what a repository needs to test its port: a target, its settings, a test, and a job of its CI.

What is there already is left alone. All texts are written beside their places first, and take them then, so
that a folder that can't be written is found before any file has changed.
"""

import errno
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from validator.errors import UsageError

__all__ = ["FILES", "Written", "scaffold"]

# Where each template goes.
FILES = {
    "port.py": "port.py",
    "test_port.py": "tests/test_port.py",
    "validator.yml": ".github/workflows/validator.yml",
}
_CONFIG = "pyproject.toml"
_JOB = "validator.yml"
_INSTALL = "python -m pip install ."


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that was written.

    Attributes:
        path: relative to the folder.
        how: `made`, `replaced`, `added to`, or `kept` where it has what is needed.
    """

    path: str
    how: str


def scaffold(folder: Path, *, force: bool = False) -> tuple[Written, ...]:
    """Write the files of `validator init` into a folder, which is made where it is missing.

    Args:
        folder: the root of a repository.
        force: replace files that are there. `pyproject.toml` is never replaced: without a table
            `[tool.validator]` it gets one at its end, and with one it is kept.

    Raises:
        UsageError: a file is there already, or can't be written; no file has changed.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; name a folder")
    _demand_folders(folder)
    there = [path for path in FILES.values() if (folder / path).exists()]
    config, how = _config(folder / _CONFIG)
    if how == "kept":
        there.append(f"[tool.validator] in {_CONFIG}")
    if there and not force:
        raise UsageError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already in {str(folder)!r}, and "
            "nothing was written. Move it away, name another folder, or give --force to replace the files"
        )
    written = [Written(path=_CONFIG, how=how)]
    texts = {_CONFIG: config} if config is not None else {}
    for name, path in FILES.items():
        written.append(Written(path=path, how="replaced" if path in there else "made"))
        texts[path] = _job(folder) if name == _JOB else _template(name)
    _write(folder, texts)
    return tuple(written)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write each text beside its place, then put all in place; where one can't be written, none is.

    Raises:
        UsageError: one can't be written.
    """
    staged: dict[Path, Path] = {}
    made: list[Path] = []
    path = folder
    try:
        for name, text in texts.items():
            path = folder / name
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
            missing = [parent for parent in path.parents if not parent.exists()]
            for parent in reversed(missing):
                parent.mkdir()
                made.append(parent)
            path = path.resolve()
            staged[path] = path.with_name(f".{path.name}.new")
            staged[path].write_bytes(text.encode())
            if path.exists():
                shutil.copymode(path, staged[path])
    except OSError as error:
        for scratch in staged.values():
            scratch.unlink(missing_ok=True)
        for parent in reversed(made):
            with suppress(OSError):
                parent.rmdir()
        raise UsageError(f"{str(path)!r} can't be written: {error.strerror}; nothing was written") from None
    for path, scratch in staged.items():
        scratch.replace(path)


def _demand_folders(folder: Path) -> None:
    for name in FILES.values():
        for parent in list(Path(name).parents)[:-1]:
            path = folder / parent
            if path.exists() and not path.is_dir():
                raise UsageError(
                    f"{str(path)!r} is a file, and a folder is needed there; nothing was written"
                )


def _config(path: Path) -> tuple[str | None, str]:
    """Return the new text of `pyproject.toml`, None where it stays as it is, and how it came about."""
    table = _template(_CONFIG)
    if not path.exists():
        return table, "made"
    try:
        # Bytes, so that the ends of its lines stay as they are.
        text = path.read_bytes().decode()
        tool = tomllib.loads(text).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{str(path)!r} can't be read: {error}; nothing was written") from None
    if isinstance(tool, dict) and "validator" in tool:
        return None, "kept"
    end = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text.strip() else end if text.endswith("\n") else end * 2
    new = text + gap + table.replace("\n", end)
    try:
        added = tomllib.loads(new)["tool"]["validator"]
    except tomllib.TOMLDecodeError:
        added = None
    if added != tomllib.loads(table)["tool"]["validator"]:
        raise UsageError(
            f"a table [tool.validator] can't be added at the end of {str(path)!r}, where `tool` is written "
            f'inline; add `validator = {{target = "port.py"}}` to it. Nothing was written'
        )
    return new, "added to"


def _job(folder: Path) -> str:
    """Return the job of the CI, which installs the repository's own package where it says how it is built."""
    config = folder / _CONFIG
    tables = tomllib.loads(config.read_bytes().decode()) if config.exists() else {}
    is_package = "build-system" in tables or (folder / "setup.py").exists()
    text = _template(_JOB)
    return text.replace(f"# {_INSTALL}", _INSTALL) if is_package else text


def _template(name: str) -> str:
    folder = resources.files("validator.testing") / "templates"
    return (folder / name).read_text(encoding="utf-8")
