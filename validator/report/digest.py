"""An outcome for readers who have a page rather than a terminal: Markdown, and a notebook's cell."""

from validator.checks.findings import Finding, Outcome
from validator.report import facts, finding_text, phrases, text
from validator.report.screen import Column, Kind, Row, Screen, Section, Table

__all__ = ["digest", "finding_screen"]

_SHOWN = 50
_COLUMNS = (
    Column(name="edge", kind=Kind.NAME),
    Column(name="check"),
    Column(name="rank"),
    Column(name="off by"),
    Column(name="looks like"),
)


def digest(outcome: Outcome) -> Screen:
    """Return the verdict, all findings in a table, what was checked, and the first finding folded."""
    subject = facts.subject(outcome)
    sections: list[Section | Table] = []
    if subject is not None:
        sections.append(_findings(outcome.findings))
    sections.append(text.checked_section(outcome))
    if subject is not None:
        evidence = finding_text.first_section(outcome, subject)
        sections.append(Section(title=evidence.title, rows=evidence.rows, folded=True))
    return Screen(
        headline=text.headline(outcome), style=text.STYLES[outcome.verdict], sections=tuple(sections)
    )


def finding_screen(finding: Finding) -> Screen:
    """Return one finding by itself, without the run that it is of."""
    alone = Outcome(verdict=finding.verdict, findings=(finding,), judgements=())
    evidence = finding_text.first_section(alone, finding)
    return Screen(
        headline=f"{finding.verdict.replace('_', ' ')}: {phrases.edge_name(finding)}",
        style=text.STYLES[finding.verdict],
        sections=(Section(rows=(Row(label="check", text=finding.check), *evidence.rows)),),
    )


def _findings(findings: tuple[Finding, ...]) -> Table:
    more = len(findings) - _SHOWN
    return Table(
        title=phrases.count(len(findings), "finding")
        + (f", of which {_SHOWN} are shown" if more > 0 else ""),
        columns=_COLUMNS,
        rows=tuple(finding_text.cells(finding) for finding in findings[:_SHOWN]),
    )
