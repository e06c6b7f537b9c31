"""A pytest plugin that writes how each test ended to a file, for `validator run`, which reads it.

Loaded by `-p validator.testing.recorder`. One JSON document a line: of a test that begins, of how it ended,
that it is done with, or of a file that could not be collected. With xdist the controller writes.
"""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from validator.pytest_plugin import asked_by
from validator.testing.section import ending_of, message_of, record_of

__all__ = ["read_records", "running"]

_FILE = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption("--validator-record", dest="validator_record", metavar="FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Write from now on, unless this is a worker of xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(config.getoption("validator_record"))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Put on a report, which may go to another process, what only its test knows."""
    report = yield
    report.validator_asked, report.validator_path = asked_by(item), str(item.path)
    return report


class _Writer:
    """Writes a line for each test that ended, and each file that could not be collected."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A test that passed may fail once more when it is taken down: the later line counts.
        if report.when != "call" and report.passed:
            return
        self._write(
            {
                "id": report.nodeid,
                "path": report.validator_path,
                "asked": report.validator_asked,
                "ending": ending_of(report),
                "message": message_of(report),
                "duration_s": report.duration,
                "record": record_of(report),
            }
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"begins": nodeid})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write({"is_done": nodeid})

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            message = str(report.longreprtext).strip().rpartition("\n")[2].removeprefix("E ").strip()
            self._write({"error": f"{report.nodeid}: {message}"})

    def _write(self, document: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file, none where pytest ended before it wrote one.

    The last line may be cut, where pytest died while it wrote.
    """
    if not path.exists():
        return []
    *lines, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    documents = [json.loads(line) for line in lines]
    try:
        return [*documents, json.loads(last)]
    except json.JSONDecodeError:
        return documents


def running(documents: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the names of the tests that began and were not done."""
    done = {document["is_done"] for document in documents if "is_done" in document}
    begun = dict.fromkeys(document["begins"] for document in documents if "begins" in document)
    return tuple(name for name in begun if name not in done)
