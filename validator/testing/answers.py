"""How suites ended: the answer of each test, the verdict on the port, and the exit code."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any

from validator.testing.records import Checked, Ending, Figure
from validator.testing.settings import Settings

__all__ = ["EXIT_CODES", "Answer", "Suite", "Summary", "run_schema"]

SCHEMA_VERSION = 1
EXIT_CODES = {Ending.PASSED: 0, Ending.FAILED: 1, Ending.COULD_NOT_RUN: 2, Ending.INCONCLUSIVE: 3}
# What pytest's own exit codes mean, where they don't only say how tests ended.
_PYTEST_SAID = {
    2: "pytest was interrupted, or could not collect the tests",
    3: "pytest failed inside",
    4: "pytest could not start, or found no test of a name that was given",
    5: "there is no test to run",
}
# How tests end that speak neither for the port nor against it.
_NO_ANSWER = (Ending.EXPECTED_FAILURE, Ending.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one test said of the port.

    Attributes:
        id: pytest's name of it.
        asked: what it asks of a port, in plain words.
        ending: how it ended.
        message: why it did not pass; empty where it did.
        module: the module to blame, or None.
        rank: the rank to blame, or None.
        evidence: figures behind a failure, by name.
        figures: those that it told.
        checks: comparisons with a verdict that it made.
        compared: how many comparisons it made.
        duration_s: how long it took.
    """

    id: str
    asked: str
    ending: Ending
    message: str = ""
    module: str | None = None
    rank: int | None = None
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    checks: tuple[Checked, ...] = ()
    compared: int = 0
    duration_s: float = 0.0

    @property
    def says_something(self) -> bool:
        """Whether it bears on the verdict: it compared something, or did not pass."""
        return self.compared > 0 or self.ending not in (Ending.PASSED, *_NO_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite and the answers of its tests, in the order in which they ran."""

    name: str
    path: str
    answers: tuple[Answer, ...]

    @property
    def compared_nothing(self) -> bool:
        """Whether none of its tests looked at the port."""
        return not any(answer.says_something for answer in self.answers)

    @property
    def why_empty(self) -> str:
        """Why it says nothing of the port, where it `compared_nothing`."""
        said = f"the suite {self.name} compared nothing"
        if all(answer.ending is not Ending.PASSED for answer in self.answers):
            return said
        return (
            f"{said} that validator knows of: its tests that passed call none of check(), baseline(), "
            "assert_aligned() or require() of `validation`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What suites said of a port.

    Attributes:
        settings: what they ran with.
        suites: in the order in which they were named.
        errors: why files could not be collected.
        exit_code_of_pytest: as it ended.
    """

    settings: Settings
    suites: tuple[Suite, ...]
    errors: tuple[str, ...] = ()
    exit_code_of_pytest: int = 0

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Those of all suites."""
        return tuple(answer for suite in self.suites for answer in suite.answers)

    @property
    def verdict(self) -> Ending:
        """A fault outweighs all else, then what could not run, then what is left undecided."""
        if self._ended(Ending.FAILED):
            return Ending.FAILED
        if self.why_no_answer:
            return Ending.COULD_NOT_RUN
        return Ending.INCONCLUSIVE if self._ended(Ending.INCONCLUSIVE) else Ending.PASSED

    @property
    def exit_code(self) -> int:
        """0 the port holds, 1 it does not, 2 something could not run, 3 something is left undecided."""
        return EXIT_CODES[self.verdict]

    @property
    def why_no_answer(self) -> tuple[str, ...]:
        """Why the suites can't say that the port holds, whatever the other tests said."""
        broken = [f"{a.asked.rstrip('.')}: {a.message}" for a in self._ended(Ending.COULD_NOT_RUN)]
        empty = [suite.why_empty for suite in self.suites if suite.compared_nothing]
        others = [answer for answer in self.answers if answer.ending is not Ending.EXPECTED_FAILURE]
        if not empty and not any(answer.says_something for answer in others):
            empty = ["nothing was compared but what was expected to fail"]
        return (*self.errors, *self._pytest_said(), *broken, *empty)

    @property
    def sentence(self) -> str:
        """The verdict in a sentence."""
        failed, undecided = self._ended(Ending.FAILED), self._ended(Ending.INCONCLUSIVE)
        judged = [a for a in self.answers if a.ending not in _NO_ANSWER]
        beside = self._beside(*_NO_ANSWER)
        if self.verdict is Ending.FAILED:
            return (
                f"The port does not hold: {len(failed)} of {_tests(len(judged))} failed{beside}, first "
                f"{_named(failed[0])}."
            )
        if self.verdict is Ending.COULD_NOT_RUN:
            reasons = self.why_no_answer
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            return f"No answer: {reasons[0].rstrip('.')}{more}."
        if self.verdict is Ending.INCONCLUSIVE:
            return (
                f"Undecided: {len(undecided)} of {_tests(len(judged))} saw too little to tell{beside}, first "
                f"{undecided[0].asked.rstrip('.')!r}; the others passed."
            )
        expected = self._ended(Ending.EXPECTED_FAILURE)
        held = f"{_tests(len(judged))} passed{self._beside(Ending.NOT_APPLICABLE)}"
        if not expected:
            return f"The port holds: {held}."
        known = _counted(len(expected), Ending.EXPECTED_FAILURE)
        first = "" if len(expected) == 1 else "first "
        return f"The port holds but for {known}, {first}{_named(expected[0])}: {held}."

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1 (`validator/testing/run_schema.json`)."""
        from validator.capturing.metadata import describe_process
        from validator.report.json_report import plain

        document = {
            "schema": SCHEMA_VERSION,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "settings": asdict(self.settings),
            "run": describe_process(world_size=self.settings.nproc),
            "suites": [asdict(suite) for suite in self.suites],
            "errors": self.why_no_answer,
        }
        made: dict[str, Any] = plain(document)
        return made

    def require_sound(self) -> None:
        """Raise `RuntimeError` where pytest itself broke: a bug, and no word on the port."""
        if self.exit_code_of_pytest == 3:
            raise RuntimeError("pytest ended with an internal error; it is shown above")

    def _ended(self, ending: Ending) -> list[Answer]:
        return [answer for answer in self.answers if answer.ending is ending]

    def _beside(self, *endings: Ending) -> str:
        """Return how many tests ended so, in brackets; nothing where none did."""
        numbers = {ending: len(self._ended(ending)) for ending in endings}
        told = [_counted(number, ending) for ending, number in numbers.items() if number]
        return f" ({', '.join(told)})" if told else ""

    def _pytest_said(self) -> list[str]:
        code = self.exit_code_of_pytest
        if code in (0, 1) or (self.errors and code not in (3, 4, 5)):
            return []
        return [_PYTEST_SAID.get(code, f"pytest was ended: code {code}")]


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    text = resources.files("validator.testing").joinpath("run_schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _named(answer: Answer) -> str:
    """Return what a test asks, in quotes, and whom it blames."""
    module = "" if answer.module is None else f" at {answer.module or 'the model itself'}"
    rank = "" if answer.rank is None else f", rank {answer.rank}"
    return f"{answer.asked.rstrip('.')!r}{module}{rank}"


def _counted(number: int, ending: Ending) -> str:
    return f"{number} {ending.words}{'s' if ending is Ending.EXPECTED_FAILURE and number > 1 else ''}"


def _tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"
