"""Run suites through pytest, in a process of its own, and bring back how each test ended.

The run has a configuration of its own: `[tool.validator]`, and the `conftest.py` files of the folders, hold;
the options that a project, or PYTEST_ADDOPTS, has for pytest don't, so that they can't change what a suite
says.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validator.content import find_suite, suite_names
from validator.errors import UsageError
from validator.testing.answers import Answer, Suite, Summary
from validator.testing.recorder import read_records, running
from validator.testing.records import Checked, Ending, Figure
from validator.testing.runnable import require_runnable
from validator.testing.settings import NO_TARGET, Settings, config_file, configured, read_settings

__all__ = ["run_suites", "suite_path"]

_STDERR = 2


def run_suites(names: Sequence[str], *, options: dict[str, Any], junit: Path | None = None) -> Summary:
    """Run suites and return how each of their tests ended.

    Args:
        names: suites that ship, or paths, each with `::TEST` behind it where one test is meant.
        options: of the settings, by key; None is not given.
        junit: a file for pytest's JUnit report.

    Raises:
        ValidatorError: there is no such suite or target, an option is not legal, or this machine lacks what
            it asks for; nothing has run.
    """
    if not names:
        raise UsageError("name a suite to run, or the path of one")
    here = Path.cwd()
    found = [suite_path(name) for name in names]
    settings = read_settings(
        configured(here), options, name=lambda key: f"--{key.replace('_', '-')}", folder=here
    )
    _require_target(settings, found)
    require_runnable(settings)
    with tempfile.TemporaryDirectory(prefix="validator-run-") as scratch:
        records = Path(scratch) / "records.jsonl"
        command = _command(found, Path(scratch), records, options, junit)
        # What pytest prints, and what targets print, is progress: the result alone goes to stdout.
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        exit_code = subprocess.run(command, stdout=_STDERR, check=False, env=environment).returncode
        lines = read_records(records)
    return Summary(
        settings=settings,
        suites=tuple(
            Suite(name=name, path=str(path), answers=_answers(lines, path, test))
            for name, (path, test) in zip(names, found, strict=True)
        ),
        errors=(
            *(line["error"] for line in lines if "error" in line),
            *(f"pytest ended with code {exit_code} while {name} ran" for name in running(lines)),
        ),
        exit_code_of_pytest=exit_code,
    )


def suite_path(name: str) -> tuple[Path, str]:
    """Return the file or folder of a suite, and `::TEST` or nothing: a path, else one that ships.

    Raises:
        UsageError: it is neither.
    """
    path, colons, test = name.partition("::")
    where = Path(path).resolve() if path and Path(path).exists() else find_suite(path)
    if where.is_file() and where.suffix != ".py":
        raise UsageError(f"{path!r} is no suite: give a Python file of tests, or a folder of such")
    return where, colons + test


def _require_target(settings: Settings, found: list[tuple[Path, str]]) -> None:
    """Refuse a suite that ships where there is no target, which each of its tests needs."""
    shipped = {find_suite(name) for name in suite_names()}
    if settings.target is None and any(path in shipped for path, _ in found):
        raise UsageError(NO_TARGET)


def _command(
    found: list[tuple[Path, str]], scratch: Path, records: Path, options: dict[str, Any], junit: Path | None
) -> list[str]:
    here = Path.cwd()
    config = config_file(here)
    root = here if config is None else config.parent
    folders = {str(path if path.is_dir() else path.parent): None for path, _ in found}
    importable = " ".join(shlex.quote(folder) for folder in [str(root), *folders])
    ini = scratch / "pytest.ini"
    ini.write_text(f"[pytest]\npythonpath = {importable}\n", encoding="utf-8")
    given = [
        f"--validator-{key.replace('_', '-')}={value}"
        for key, value in options.items()
        if key != "long" and value
    ]
    return [
        *(sys.executable, "-m", "pytest", "-v", "--no-header", "--import-mode=importlib"),
        *("-c", str(ini), f"--rootdir={root}", f"--confcutdir={root}", "-p", "no:cacheprovider"),
        *("-p", "validator", "-p", "validator.testing.recorder", f"--validator-record={records}"),
        *given,
        *(["--validator-long"] if options.get("long") else []),
        *([] if junit is None else [f"--junit-xml={junit.resolve()}"]),
        *(str(path) + test for path, test in found),
    ]


def _answers(lines: list[dict[str, Any]], path: Path, test: str) -> tuple[Answer, ...]:
    """Return the answers of a suite; of a test that told its end twice, the later."""
    own = {
        line["id"]: line
        for line in lines
        if "id" in line and Path(line["path"]).is_relative_to(path) and _is_meant(line["id"], test)
    }
    return tuple(_answer(line) for line in own.values())


def _is_meant(nodeid: str, test: str) -> bool:
    told = "::" + nodeid.partition("::")[2]
    return not test or told == test or told.startswith((f"{test}::", f"{test}["))


def _answer(line: dict[str, Any]) -> Answer:
    record = line["record"] or {}
    failure = record.get("failure") or {}
    return Answer(
        id=line["id"],
        asked=line["asked"],
        ending=Ending(line["ending"]),
        message=line["message"],
        module=failure.get("module"),
        rank=failure.get("rank"),
        evidence=failure.get("evidence", {}),
        figures=tuple(Figure(**figure) for figure in record.get("figures", ())),
        checks=tuple(Checked(**checked) for checked in record.get("checks", ())),
        compared=record.get("compared", 0),
        duration_s=line["duration_s"],
    )
