"""What tests of a port run with: from the command line, `[tool.validator]`, and the marker of a test.

The marker goes before the command line, the command line before `pyproject.toml`. Paths of `pyproject.toml`
are relative to its folder, those of the command line to where it was typed, and those of a marker to the root
folder of pytest's run.
"""

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validator.errors import UsageError

__all__ = ["KEYS", "NO_TARGET", "Settings", "config_file", "configured", "read_settings"]

NO_TARGET = (
    "no target is named, so there is nothing to test. Give --target FILE, in pytest --validator-target=FILE, "
    'or write `target = "port.py"` under [tool.validator] in pyproject.toml; `validator init` makes both'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a test of a port runs with.

    Attributes:
        target: path of the target, or None where none is named.
        nproc: ranks to launch the candidate on.
        device: passed to the candidate.
        dtype: passed to the candidate.
        tp: tensor-parallel size, for a checkpoint folder.
        recipe: name of what the device may round, or None for the target's own.
        baselines: folder of the stored reference runs.
        reports: folder for the results as JSON, or None to write none.
        card_counts: numbers of ranks that suites about card counts run the candidate on.
        samples: files of prompts with scores: one of JSON lines with those of both sides, or lm-eval's of the
            reference and of the candidate.
        long: whether suites run their long versions.
        update_baselines: whether baselines may be written.
        names_baselines: whether somebody named their folder, so that baselines are asked for.
        names_card_counts: whether somebody named them, so that they must be run.
    """

    target: str | None = None
    nproc: int = 1
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
    recipe: str | None = None
    baselines: Path = Path("baselines")
    reports: Path | None = None
    card_counts: tuple[int, ...] = (1, 2)
    samples: tuple[Path, ...] = ()
    long: bool = False
    update_baselines: bool = False
    names_baselines: bool = False
    names_card_counts: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What a target is run with, by the names that `check_target` has for it."""
        names = ("nproc", "device", "dtype", "tp", "recipe")
        return {name: getattr(self, name) for name in names}

    def updating(self, update_baselines: bool) -> "Settings":
        """Return these settings, and whether baselines may be written."""
        return replace(self, update_baselines=update_baselines)

    def __str__(self) -> str:
        """Return what is set, in one line: `port.py, nproc 2, dtype bfloat16`."""
        said = [f"{name} {value}" for name, value in self.options.items() if value not in (None, 1)]
        return ", ".join([self.target or "no target", *said, *(["long"] if self.long else [])])


def read_settings(
    base: Settings, values: Mapping[str, Any], *, name: Callable[[str], str], folder: Path
) -> Settings:
    """Return settings with what one place says in place of what `base` says.

    Args:
        base: what holds where the place says nothing.
        values: what it says, by key; None is nothing.
        name: returns how the place calls a key, for messages: `"--validator-nproc"`.
        folder: what its paths are relative to.

    Raises:
        UsageError: a key that does not exist, or a value that is not legal.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in KEYS:
            raise UsageError(f"no such setting: {name(key)}.{_nearest(key)} There are {', '.join(KEYS)}")
        if value is not None:
            found[key] = KEYS[key](name(key), value, folder)
    for key in ("baselines", "card_counts"):
        if key in found:
            found[f"names_{key}"] = True
    return replace(base, **found)


def configured(folder: Path, *, is_root: bool = False) -> Settings:
    """Return what `[tool.validator]` of the nearest `pyproject.toml` says, searched upwards from `folder`.

    Args:
        folder: where to begin.
        is_root: as of `config_file`.

    Raises:
        UsageError: the file can't be read, or what it says is not legal.
    """
    path = config_file(folder, is_root=is_root)
    if path is None:
        return Settings(baselines=_path("baselines", "baselines", folder))
    table = _table(path)
    if not isinstance(table, dict):
        raise UsageError(f"tool.validator in {path} is {table!r}; it must be a table: [tool.validator]")
    base = Settings(baselines=_path("baselines", "baselines", path.parent))
    values = {key.replace("-", "_"): value for key, value in table.items()}
    return read_settings(
        base, values, name=lambda key: f"{key} in [tool.validator] of {path}", folder=path.parent
    )


def config_file(folder: Path, *, is_root: bool = False) -> Path | None:
    """Return the nearest `pyproject.toml` with a table `[tool.validator]`, searched upwards, or None.

    The nearest one of all is the project's own. Those above it may be anybody's, and are passed over where
    they can't be read.

    Args:
        folder: where to begin.
        is_root: whether this is the project's root, so that no file above it is its own.

    Raises:
        UsageError: the project's own can't be read.
    """
    is_own = True
    for base in (folder, *folder.parents):
        path = base / "pyproject.toml"
        if path.is_file():
            try:
                if _table(path) is not None:
                    return path
            except UsageError:
                if is_own:
                    raise
            is_own = False
        is_own = is_own and not is_root
    return None


def _table(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        # A file that doesn't speak of us is not ours to complain about.
        tool = tomllib.loads(text).get("tool", {}) if "validator" in text else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from None
    return tool.get("validator") if isinstance(tool, dict) else None


def _text(name: str, value: Any, folder: Path) -> str:
    if isinstance(value, str) and value:
        return value
    raise UsageError(f"{name} is {value!r}; it must be a text")


def _path(name: str, value: Any, folder: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise UsageError(f"{name} is {value!r}; it must be a path")
    path, here = folder / Path(value).expanduser(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def _target(name: str, value: Any, folder: Path) -> str:
    return str(_path(name, value, folder))


def _count(name: str, value: Any, folder: Path) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
        return number
    raise UsageError(f"{name} is {value!r}; it must be a whole number, 1 or more")


def _counts(name: str, value: Any, folder: Path) -> tuple[int, ...]:
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    try:
        counts = tuple(_count(name, part, folder) for part in parts)
    except (TypeError, UsageError):
        counts = ()
    if not counts or len(set(counts)) < len(counts):
        raise UsageError(f"{name} is {value!r}; it must be different numbers of ranks, such as 1,2,4")
    return counts


def _samples(name: str, value: Any, folder: Path) -> tuple[Path, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if (
        isinstance(parts, list)
        and len(parts) in (1, 2)
        and all(isinstance(p, str) and p.strip() for p in parts)
    ):
        return tuple(_path(name, part.strip(), folder) for part in parts)
    raise UsageError(
        f"{name} is {value!r}; it must be one file with the scores of both sides, or two: the reference's, "
        "then the candidate's"
    )


def _switch(name: str, value: Any, folder: Path) -> bool:
    if isinstance(value, bool):
        return value
    raise UsageError(f"{name} is {value!r}; it must be true or false")


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, KEYS, n=1)
    return f" Do you mean {near[0]}?" if near else ""


# How each setting's value is read. `update_baselines` is not among them: only the command line's option
# writes a baseline.
KEYS: dict[str, Callable[[str, Any, Path], Any]] = {
    "target": _target,
    "nproc": _count,
    "device": _text,
    "dtype": _text,
    "tp": _count,
    "recipe": _text,
    "baselines": _path,
    "reports": _path,
    "card_counts": _counts,
    "samples": _samples,
    "long": _switch,
}
