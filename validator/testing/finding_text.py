"""The text of a test that failed: the first finding, short enough for one screen."""

from validator.checks.findings import Outcome
from validator.report import facts, finding_text, text
from validator.report.screen import Screen, Section, plain_text
from validator.testing.lines import WIDTH

__all__ = ["failure_text"]

_FURTHER = 3
_REASONS = 3


def failure_text(outcome: Outcome) -> str:
    """Return what a test shows of an outcome that is not aligned, in lines of at most 80 columns.

    The headline and the first finding with its evidence, the first of the further ones, and where there is
    none the reasons why the outcome is inconclusive. The rest is for the report.
    """
    subject = facts.subject(outcome)
    sections: list[Section] = []
    if subject is not None:
        sections.append(finding_text.first_section(outcome, subject))
        others = [finding for finding in outcome.findings if finding is not subject]
        if others:
            sections.append(_first_rows(finding_text.further_section(others), _FURTHER))
    else:
        sections.append(_first_rows(text.checked_section(outcome), _REASONS))
    return plain_text(Screen(headline=text.headline(outcome), style="", sections=tuple(sections)), WIDTH)


def _first_rows(section: Section, number: int) -> Section:
    return Section(title=section.title, rows=section.rows[:number])
