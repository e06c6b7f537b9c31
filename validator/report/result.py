"""What `validator.check` returns: an outcome that shows, saves and tabulates itself."""

import dataclasses
import io
import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from validator.checks.findings import Evidence, Finding, Judgement, Outcome, Verdict
from validator.report import facts, json_report, text
from validator.report.screen import Screen

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EXIT_CODES", "Result"]

EXIT_CODES = {
    Verdict.ALIGNED: 0,
    Verdict.DIVERGENT: 1,
    Verdict.UNDECLARED_PRECISION: 1,
    Verdict.INCONCLUSIVE: 3,
}
_JUDGEMENT_COLUMNS = tuple(field.name for field in dataclasses.fields(Judgement) if field.name != "evidence")
_EVIDENCE_COLUMNS = tuple(field.name for field in dataclasses.fields(Evidence))


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The answer to "does the candidate compute what the reference does?".

    It prints as one screen of text, in a terminal and in a notebook.
    """

    outcome: Outcome

    @property
    def verdict(self) -> Verdict:
        """Of the whole run."""
        return self.outcome.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The edges that rounding can't explain, in execution order, parameters first."""
        return self.outcome.findings

    @property
    def first_divergence(self) -> Finding | None:
        """The first finding that is divergent, or None."""
        return facts.first_divergence(self.outcome)

    @property
    def exit_code(self) -> int:
        """0 aligned, 1 divergent or undeclared precision, 3 inconclusive."""
        return EXIT_CODES[self.outcome.verdict]

    def to_frame(self) -> "pd.DataFrame":
        """Return one row an edge, aligned or not, in the order of judging, with its evidence."""
        import pandas as pd

        rows = [
            {name: getattr(judgement, name) for name in _JUDGEMENT_COLUMNS}
            | {name: getattr(judgement.evidence, name) for name in _EVIDENCE_COLUMNS}
            for judgement in self.outcome.judgements
        ]
        frame = pd.DataFrame(rows, columns=[*_JUDGEMENT_COLUMNS, *_EVIDENCE_COLUMNS])
        names = ["check", "verdict", "arm"]
        frame[names] = frame[names].map(lambda choice: None if choice is None else str(choice))
        return frame.astype({"rank": "Int64", "outside": "Int64", "elements": "Int64"})

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1 (`validator/report/schema.json`)."""
        return json_report.to_json(self.outcome)

    def write_json(self, path: str | PathLike[str]) -> None:
        """Write the document of schema 1 to `path`, replacing what is there."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        """Return the terminal text without colours, 80 columns wide."""
        return text.to_text(self.outcome)

    def __rich__(self) -> Screen:
        """Return the terminal text for a rich console."""
        return text.render(self.outcome)

    def _repr_html_(self) -> str:
        console = Console(record=True, file=io.StringIO(), width=100)
        console.print(self)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
