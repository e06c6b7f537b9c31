"""What the stages of day 0 said, and the answer of the whole."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from validator.report import phrases
from validator.testing.answers import EXIT_CODES
from validator.testing.records import Ending

__all__ = ["SCHEMA_VERSION", "Day0", "StageResult"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How a stage ended.

    Attributes:
        name: of the stage.
        asked: what it asks of a port.
        ending: how it ended.
        summary: one sentence.
        details: further sentences.
        advice: what to do next where it did not pass.
        report: file in the folder of the run that has all of it, or None.
        duration_s: how long it took.
        ran: when it began, as `2026-11-30 09:15 UTC`.
        remembered: whether it is of an earlier run.
    """

    name: str
    asked: str
    ending: Ending
    summary: str
    details: tuple[str, ...] = ()
    advice: str = ""
    report: str | None = None
    duration_s: float = 0.0
    ran: str = ""
    remembered: bool = False

    @property
    def passed(self) -> bool:
        """Whether the next stage may begin."""
        return self.ending in (Ending.PASSED, Ending.NOT_APPLICABLE)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "StageResult":
        """Read what `asdict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is nothing of the kind.
        """
        return cls(
            name=str(fields["name"]),
            asked=str(fields["asked"]),
            ending=Ending(fields["ending"]),
            summary=str(fields["summary"]),
            details=tuple(str(detail) for detail in fields["details"]),
            advice=str(fields["advice"]),
            report=None if fields["report"] is None else str(fields["report"]),
            duration_s=float(fields["duration_s"]),
            ran=str(fields["ran"]),
            remembered=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Day0:
    """The answer of day 0.

    Attributes:
        source: the target.
        stages: those that ran, in order; all but the last passed.
        left: names of those that were not reached.
        page: the summary page.
    """

    source: str
    stages: tuple[StageResult, ...]
    left: tuple[str, ...]
    page: str

    @property
    def ending(self) -> Ending:
        """Of the whole: passed where every stage that applies did, and one does."""
        if not self.stages[-1].passed:
            return self.stages[-1].ending
        return Ending.PASSED if self._named(Ending.PASSED) else Ending.INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """0 all stages passed, 1 one failed, 2 one could not run, 3 one is left undecided."""
        return EXIT_CODES[self.ending]

    @property
    def sentence(self) -> str:
        """The answer in a sentence."""
        last = self.stages[-1]
        if self.ending is Ending.PASSED:
            others = self._named(Ending.NOT_APPLICABLE)
            beside = f", not applicable: {', '.join(others)}" if others else ""
            passed = phrases.count(len(self._named(Ending.PASSED)), "stage")
            return f"{self.source} is ready: {passed} passed{beside}."
        if last.passed:
            return f"{self.source} is left undecided: no stage applies to it."
        words = {
            Ending.FAILED: "fails",
            Ending.INCONCLUSIVE: "is left undecided",
            Ending.COULD_NOT_RUN: "could not run",
        }
        return f"{self.source} is not ready: the stage {last.name!r} {words[self.ending]}. {last.summary}"

    def _named(self, ending: Ending) -> list[str]:
        return [stage.name for stage in self.stages if stage.ending is ending]

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1."""
        return {
            "schema": SCHEMA_VERSION,
            "source": self.source,
            "verdict": str(self.ending),
            "sentence": self.sentence,
            "stages": [{**asdict(stage), "ending": str(stage.ending)} for stage in self.stages],
            "not_reached": list(self.left),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a line a stage, the answer, and what to do next."""
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("stage", no_wrap=True)
        table.add_column("result", no_wrap=True)
        table.add_column("what was found", overflow="fold")
        for stage in self.stages:
            when = f" (of {stage.ran})" if stage.remembered else ""
            table.add_row(
                stage.name,
                Text(stage.ending.words, style=stage.ending.style),
                Text(phrases.printable(stage.summary + when)),
            )
        for name in self.left:
            table.add_row(Text(name, style="dim"), Text("not reached", style="dim"), Text(""))
        yield table
        yield Text("")
        yield Text(phrases.printable(self.sentence), style=self.ending.style)
        for detail in self.stages[-1].details if self.ending is not Ending.PASSED else ():
            yield Text(phrases.printable(f"  {detail}"))
        if self.stages[-1].advice:
            yield Text(phrases.printable(f"next: {self.stages[-1].advice}"))
        yield Text(phrases.printable(f"page: {self.page}"), style="dim")
