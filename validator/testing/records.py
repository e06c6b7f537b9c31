"""What a test of a port leaves behind: how it ended, what it compared, and its figures.

A record crosses processes (xdist) and is written to files, so it becomes plain values: see `as_dict`.
"""

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Checked", "Ending", "Failure", "Figure", "Record", "figure_text", "plain"]


class Ending(StrEnum):
    """How a test of a port ended."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    COULD_NOT_RUN = "could_not_run"
    EXPECTED_FAILURE = "expected_failure"
    NOT_APPLICABLE = "not_applicable"

    @property
    def words(self) -> str:
        """As a reader sees it."""
        return self.replace("_", " ")

    @property
    def style(self) -> str:
        """Of its words in a terminal, as rich names it."""
        return _STYLES[self]


_STYLES = {
    Ending.PASSED: "green",
    Ending.FAILED: "bold red",
    Ending.INCONCLUSIVE: "magenta",
    Ending.COULD_NOT_RUN: "yellow",
    Ending.EXPECTED_FAILURE: "red",
    Ending.NOT_APPLICABLE: "dim",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a test.

    Attributes:
        limit: what it was held to, or None where nothing depends on it.
        error: its standard error, or None where it has none or nobody knows it.
        samples: the measurements that `value` sums up, where there were several.
    """

    name: str
    value: float | int | str
    unit: str = ""
    limit: float | int | str | None = None
    error: float | None = None
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A comparison that a test made, in short.

    Attributes:
        verdict: as in `validator.checks.findings`.
        headline: the first line of its text.
        target: what was compared.
        module: where the first finding is, or None.
        rank: on which rank, or None.
        report: the file that the whole result was written to, or None.
    """

    verdict: str
    headline: str
    target: str
    module: str | None = None
    rank: int | None = None
    report: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a test did not pass.

    Attributes:
        ending: `FAILED`, `INCONCLUSIVE` or `COULD_NOT_RUN`, also where the failure was expected.
        message: one or a few sentences.
        module: the module to blame, or None.
        rank: the rank to blame, or None.
        evidence: figures behind it, by name.
    """

    ending: Ending
    message: str
    module: str | None = None
    rank: int | None = None
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Record:
    """What a test has said so far.

    Attributes:
        asked: what it asks of a port, in plain words: the first line of its docstring, else its name.
        settings: what it ran with, in one line.
        judges: whether it holds the fixture that compares, so that it has to compare something.
        compared: how many comparisons it made; a figure is none.
        checks: those that have a verdict.
        figures: in the order in which they were told.
        failure: why it did not pass, where it said so itself.
    """

    asked: str
    settings: str = ""
    judges: bool = False
    compared: int = 0
    checks: list[Checked] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    failure: Failure | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain values."""
        values = dataclasses.asdict(self)
        if self.failure is not None:
            values["failure"]["ending"] = str(self.failure.ending)
        return values


def plain(value: Any) -> float | int | str:
    """Return a figure's value as a number or a text, which every process and file format knows."""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def figure_text(figure: Figure) -> str:
    """Return `perplexity 3.21 nat (limit 3.4)`."""
    unit = f" {figure.unit}" if figure.unit else ""
    limit = "" if figure.limit is None else f" (limit {_value(figure.limit)}{unit})"
    return f"{figure.name} {_value(figure.value)}{unit}{limit}"


def _value(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
