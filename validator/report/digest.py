"""An outcome for readers who have a page rather than a terminal: Markdown, and a notebook's cell."""

from collections.abc import Iterator
from dataclasses import replace

from validator.checks.findings import Finding, Outcome
from validator.report import facts, finding_text, phrases, text
from validator.report.screen import Column, Kind, Screen, Section, Table

__all__ = ["digest", "finding_screen"]

_SHOWN, _FOLDED = 10, 40
_COLUMNS = (
    Column(name="edge", kind=Kind.NAME),
    Column(name="check"),
    Column(name="rank"),
    Column(name="off by"),
    Column(name="looks like"),
)


def digest(outcome: Outcome) -> Screen:
    """Return the verdict, the findings in tables, what was checked, and the first finding folded."""
    subject = facts.subject(outcome)
    checked = replace(text.checked_section(outcome), title="what was checked")
    sections: list[Section | Table] = [*_findings(outcome.findings), checked]
    if subject is not None:
        sections.append(replace(finding_text.first_section(outcome, subject), folded=True))
    return Screen(
        headline=text.headline(outcome), style=text.STYLES[outcome.verdict], sections=tuple(sections)
    )


def finding_screen(finding: Finding) -> Screen:
    """Return one finding by itself, without the run that it is of."""
    alone = Outcome(verdict=finding.verdict, findings=(finding,), judgements=())
    evidence = finding_text.finding_section(alone, finding)
    return Screen(
        headline=f"{finding.verdict.replace('_', ' ')}: {finding_text.place_of(finding)}",
        style=text.STYLES[finding.verdict],
        sections=(replace(evidence, title=finding_text.check_of(finding)),),
    )


def _findings(findings: tuple[Finding, ...]) -> Iterator[Table]:
    """Yield the first findings, and more of them folded; JSON has all."""
    yield _table(phrases.count(len(findings), "finding"), findings[:_SHOWN])
    folded = findings[_SHOWN : _SHOWN + _FOLDED]
    left = len(findings) - _SHOWN - len(folded)
    yield _table(
        f"the next {len(folded)}" + (f", and {left} more in the JSON" if left > 0 else ""),
        folded,
        folded=True,
    )


def _table(title: str, findings: tuple[Finding, ...], *, folded: bool = False) -> Table:
    rows = tuple(finding_text.cells(finding) for finding in findings)
    return Table(title=title, columns=_COLUMNS, rows=rows, folded=folded)
