"""What a pytest run shows of tests of a port: a failure without traceback, JUnit properties, one section.

A test's record travels on its report, as plain values, so that it comes through xdist.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from validator.errors import ValidatorError
from validator.testing.failures import PortFailure
from validator.testing.lines import wrapped
from validator.testing.records import Ending, Failure, Figure, Record, figure_text

__all__ = ["attach", "ending_of", "message_of", "record_of", "require_compared", "section_lines"]

_KEY = "validator_record"
_PASSED_STRICTLY = "[XPASS(strict)]"
"""What pytest's word on a test begins with that passed, though its marker says that it fails."""
_NOTHING_COMPARED = (
    "it passed, but compared nothing: call check(), baseline(), assert_aligned() or require() of "
    "`validation`; a figure alone judges nothing"
)


def attach(report: pytest.TestReport, item: pytest.Item, call: pytest.CallInfo[None], record: Record) -> None:
    """Put a test's record on the report of the phase that decided; a user's mistake is its message alone.

    A test that was skipped is placed where it stands, not where the skip was raised, here in this package.
    """
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, _ = item.reportinfo()
        report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
    error = None if call.excinfo is None else call.excinfo.value
    if error is not None and (report.failed or _was_expected(report)):
        if isinstance(error, ValidatorError):
            error = PortFailure(Failure(ending=Ending.COULD_NOT_RUN, message=str(error)))
        if isinstance(error, PortFailure):
            record.failure, report.longrepr = error.failure, error.text
        else:
            # Only a test that compared and said so is a verdict; anything else that is raised is a bug.
            is_verdict = isinstance(error, AssertionError | pytest.fail.Exception) and report.when == "call"
            ending = Ending.FAILED if is_verdict else Ending.COULD_NOT_RUN
            record.failure = Failure(ending=ending, message=_first_line(error))
    if report.when == "call" or not report.passed:
        setattr(report, _KEY, record.as_dict())
        item.user_properties.extend(
            pair for pair in _properties(record, report) if pair not in item.user_properties
        )
        report.user_properties = list(item.user_properties)


def require_compared(record: Record) -> None:
    """Raise where a test has the fixture `validation` and compared nothing: it did not pass."""
    if record.judges and not record.compared:
        raise PortFailure(Failure(ending=Ending.COULD_NOT_RUN, message=_NOTHING_COMPARED))


def record_of(report: Any) -> dict[str, Any] | None:
    """Return the record that a report carries, or None."""
    return getattr(report, _KEY, None)


def message_of(report: Any) -> str:
    """Return why a test did not pass, in a sentence; empty where it did."""
    failure = (record_of(report) or {}).get("failure")
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple | list):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    if failure is None and _passed_unexpectedly(report):
        return "it passed, though it is marked as an expected failure: take the marker away"
    message = _what_broke(report) if failure is None else str(failure["message"])
    reason = str(report.wasxfail).removeprefix("reason: ") if _was_expected(report) else ""
    return message if reason in message else f"{reason}: {message}"


def ending_of(report: Any) -> Ending:
    """Return how the test of a report ended."""
    if report.passed:
        return Ending.PASSED
    if report.skipped:
        return Ending.EXPECTED_FAILURE if _was_expected(report) else Ending.NOT_APPLICABLE
    failure = (record_of(report) or {}).get("failure")
    if failure is not None:
        return Ending(failure["ending"])
    is_verdict = report.when == "call" and not _passed_unexpectedly(report)
    return Ending.FAILED if is_verdict else Ending.COULD_NOT_RUN


def section_lines(reports: list[Any]) -> list[str]:
    """Return the section's lines: for each test of a port how it ended, and its figures."""
    told = sorted(
        ((report, record) for report in reports if (record := record_of(report)) is not None),
        key=lambda pair: str(pair[0].nodeid),
    )
    settings = {record["settings"] for _, record in told}
    lines = sorted(settings) if len(settings) == 1 else []
    for report, record in told:
        lines += wrapped(f"{report.nodeid}: {_ended(report)}")
        figures = [Figure(**figure) for figure in record["figures"]]
        # A text is a sentence of its own; what is measured stands side by side.
        texts = [figure for figure in figures if isinstance(figure.value, str) and " " in figure.value]
        measured = ", ".join(figure_text(figure) for figure in figures if figure not in texts)
        for told_figures in filter(None, (measured, *map(figure_text, texts))):
            lines += wrapped(told_figures, head="  ")
    return lines


def _ended(report: Any) -> str:
    ending, message = ending_of(report), message_of(report).partition("\n")[0]
    words = "" if ending is Ending.FAILED and message else ending.words
    return ": ".join(filter(None, (words, message)))


def _was_expected(report: Any) -> bool:
    """Return whether a test failed as its marker `xfail` says it does."""
    return bool(report.skipped) and hasattr(report, "wasxfail")


def _passed_unexpectedly(report: Any) -> bool:
    """Return whether a test is failed only because it passed: its marker `xfail` is strict."""
    return isinstance(report.longrepr, str) and report.longrepr.startswith(_PASSED_STRICTLY)


def _what_broke(report: Any) -> str:
    """Return the first line of the error of a test without a record, or the last of what pytest shows."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longreprtext).strip().rpartition("\n")[2]
    # pytest.xfail(), and a test that isn't to be run, raise this.
    return str(crash.message).partition("\n")[0].rpartition("XFailed: ")[2]


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return text or "an assertion does not hold"
    return f"{type(error).__name__}: {text}"


def _properties(record: Record, report: pytest.TestReport) -> Iterator[tuple[str, object]]:
    yield "validator.ending", str(ending_of(report))
    for checked in record.checks:
        yield "validator.verdict", checked.verdict
    if record.failure is not None and not report.passed:
        if record.failure.module is not None:
            yield "validator.module", record.failure.module
        if record.failure.rank is not None:
            yield "validator.rank", record.failure.rank
    for figure in record.figures:
        yield f"validator.{figure.name}", figure.value
