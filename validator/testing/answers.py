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
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite and the answers of its tests, in the order in which they ran."""

    name: str
    path: str
    answers: tuple[Answer, ...]

    @property
    def compared_nothing(self) -> bool:
        """Whether none of its tests looked at the port."""
        return all(answer.ending is Ending.NOT_APPLICABLE for answer in self.answers)


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
        empty = [f"the suite {s.name} compared nothing" for s in self.suites if s.compared_nothing]
        return (*self.errors, *self._pytest_said(), *broken, *empty)

    @property
    def sentence(self) -> str:
        """The verdict in a sentence."""
        failed, undecided = self._ended(Ending.FAILED), self._ended(Ending.INCONCLUSIVE)
        judged = [a for a in self.answers if a.ending is not Ending.NOT_APPLICABLE]
        left_out = len(self.answers) - len(judged)
        beside = f" ({left_out} not applicable)" if left_out else ""
        if self.verdict is Ending.FAILED:
            where = _place(failed[0])
            return (
                f"The port does not hold: {len(failed)} of {_tests(len(judged))} failed{beside}, first "
                f"{failed[0].asked.rstrip('.')!r}{where}."
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
        return f"The port holds: {_tests(len(judged))} passed{beside}."

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


def _place(answer: Answer) -> str:
    module = "" if answer.module is None else f" at {answer.module or 'the model itself'}"
    return module + ("" if answer.rank is None else f", rank {answer.rank}")


def _tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"
