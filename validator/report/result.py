"""What `validator.check` returns: an outcome that shows, saves and tabulates itself."""

import dataclasses
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.checks.findings import Evidence, Finding, Judgement, Outcome, Verdict
from validator.report import facts, json_report, text
from validator.report.digest import digest
from validator.report.screen import Screen
from validator.report.shown import Shown

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from validator.report.notebook.explorer import Explorer
    from validator.report.notebook.plots import Edge

__all__ = ["EXIT_CODES", "Result"]

EXIT_CODES = {
    Verdict.ALIGNED: 0,
    Verdict.DIVERGENT: 1,
    Verdict.UNDECLARED_PRECISION: 1,
    Verdict.INCONCLUSIVE: 3,
}
_NOT_IN_FRAME = ("evidence", "profile")
_JUDGEMENT_COLUMNS = tuple(
    field.name for field in dataclasses.fields(Judgement) if field.name not in _NOT_IN_FRAME
)
_EVIDENCE_COLUMNS = tuple(field.name for field in dataclasses.fields(Evidence))


@dataclasses.dataclass(frozen=True, slots=True)
class Result(Shown):
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

    def figure(self, name: str, edge: "Edge" = None) -> "go.Figure":
        """Return a plot as a plotly figure.

        Args:
            name: of the run `edges`, `layers`, `layers: METRIC`, `positions` or `kl`; of an edge
                `along token` (or another dim, or `rank`), `ulp` or `values`.
            edge: which edge: a row of the frame, a judgement or a finding; default the first divergence, else
                the edge that is nearest to its band.

        Raises:
            UsageError: there is no such plot (the message names all), or it needs profiles, which
                `check(..., profiles=True)` keeps.
        """
        from validator.report.notebook.plots import plot

        return plot(self.outcome, name, edge)

    def explore(self, values: str | PathLike[str] | None = None) -> "Explorer":
        """Return an interactive view for a notebook, from layers to single elements.

        Args:
            values: the folder of `check --keep FOLDER`, of whose `judged.h5` only what is looked at is read;
                None shows no single elements.

        Raises:
            CaptureError: that file is damaged or none.
        """
        from validator.report.notebook.explorer import explore

        return explore(self.outcome, None if values is None else Path(values))

    def to_html(self) -> str:
        """Return the page with all figures; those of single edges need the profiles that `check` can keep."""
        from validator.report.page.rendering import to_html

        return to_html(self.outcome)

    def __rich__(self) -> Screen:
        """Return the terminal text for a rich console."""
        return text.render(self.outcome)

    def page(self) -> Screen:
        """Return all findings in a table, what was checked, and the first finding to be opened."""
        return digest(self.outcome)
