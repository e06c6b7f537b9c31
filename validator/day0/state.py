"""What day 0 remembers of an earlier run, so that it goes on where it stopped."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

from validator.bisecting.identity import content_of, versions
from validator.capturing.metadata import describe_process
from validator.day0.records import StageResult
from validator.errors import UsageError
from validator.testing.settings import Settings

__all__ = ["State"]

_FILE = "day0.json"

_OF_A_SHELL = ("_", "PWD", "OLDPWD", "SHLVL", "PS1", "PROMPT_COMMAND", "COLUMNS", "LINES", "TMPDIR")
_OF_A_TERMINAL = (
    "TERM*",
    "COLORTERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "TMUX*",
    "STY",
    "WINDOWID",
    "VTE_*",
    "VSCODE_*",
    "ALACRITTY_*",
    "GNOME_TERMINAL_*",
    "ITERM_*",
    "KITTY_*",
    "KONSOLE_*",
    "WEZTERM_*",
    "WT_*",
)
_OF_A_SESSION = (
    "SSH_*",
    "*DISPLAY",
    "XAUTHORITY",
    "XDG_*",
    "DBUS_*",
    "DIRENV_*",
    "*_SESSION_*",
    "SESSION_MANAGER",
    "KRB5CCNAME",
)
_OF_A_JOB = (
    "SLURM*",
    "PBS_*",
    "LSB_*",
    "ACTIONS_*",
    "CI_*",
    "GITHUB_*",
    "RUNNER_*",
    "BUILD_*",
    "PYTEST_*",
    "INVOCATION_ID",
)
_OF_A_PROCESS = ("*JOB_ID", "*_PID", "*_SOCK", "*_LOCK", "JOURNAL_STREAM")
_VOLATILE = (*_OF_A_SHELL, *_OF_A_TERMINAL, *_OF_A_SESSION, *_OF_A_JOB, *_OF_A_PROCESS)
"""Globs of variables that differ between runs of the same thing."""


class State:
    """The stages that passed, of a target and settings that have not changed since."""

    def __init__(self, folder: Path, *, settings: Settings, fresh: bool = False) -> None:
        """Read what is remembered.

        Args:
            folder: of the run.
            settings: the target, and what it is run with.
            fresh: forget what is remembered.

        Raises:
            UsageError: the folder can't be written.
        """
        self._path = folder / _FILE
        self._key = _key(settings)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if fresh:
                self._path.unlink(missing_ok=True)
            self._stages = self._read()
            self._write()
        except OSError as error:
            raise UsageError(
                f"the folder {str(folder)!r} can't be written: {error.strerror}; name another with --keep"
            ) from None

    def get(self, name: str) -> StageResult | None:
        """Return how a stage ended before, if it passed."""
        return self._stages.get(name)

    def keep(self, result: StageResult) -> None:
        """Remember a stage that passed."""
        if result.passed:
            self._stages[result.name] = result
            self._write()

    def _read(self) -> dict[str, StageResult]:
        """Return the stages of the same target and settings; what can't be read counts as none."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["key"] != self._key:
                return {}
            return {name: StageResult.from_json(fields) for name, fields in document["stages"].items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self) -> None:
        stages = {
            name: {**asdict(stage), "ending": str(stage.ending)} for name, stage in self._stages.items()
        }
        scratch = self._path.with_suffix(".new")
        scratch.write_text(
            json.dumps({"key": self._key, "stages": stages}, indent=2) + "\n", encoding="utf-8"
        )
        scratch.replace(self._path)


def _key(settings: Settings) -> str:
    """Return a hash of what an answer depends on.

    That is the target with the modules of its folder and of this one that it imports (files of a checkpoint:
    sizes and times, and what is in small ones), the settings, the files that they name, the environment's
    variables, the machine, and versions of software. Other data that a target reads is not looked at.
    """
    run = describe_process(world_size=settings.nproc)
    said = {
        "content": _content(Path(settings.target or "")),
        "settings": asdict(settings),
        "files": sorted(_stamps(settings)),
        "versions": versions(),
        "environment": _environment(),
        "run": {name: run[name] for name in ("hardware", "software", "determinism")},
    }
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _environment() -> dict[str, str]:
    """Return the variables that a target may read, but for those that differ in each run."""
    return {
        name: value
        for name, value in os.environ.items()
        if not any(fnmatchcase(name, glob) for glob in _VOLATILE)
    }


def _content(source: Path) -> dict[str, str]:
    """Return what the target is made of; one that can't be read passes no stage that could be remembered."""
    try:
        return content_of(source, beside=(Path.cwd(),))
    except (OSError, SyntaxError, ValueError) as error:
        return {"unreadable": str(error)}


def _stamps(settings: Settings) -> Iterator[str]:
    """Yield size and time of the files that suites read beside the target: samples, and baselines."""
    for path in (*settings.samples, *settings.baselines.glob("*/*"), *settings.baselines.glob("*.h5")):
        if path.is_file():
            state = path.stat()
            yield f"{path} {state.st_size} {state.st_mtime_ns}"
