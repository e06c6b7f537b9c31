"""The page of an outcome."""

from collections.abc import Mapping
from dataclasses import dataclass

from validator.checks.findings import Outcome, Unobservable
from validator.report import facts, phrases, text
from validator.report.figures.drawing import edge_label
from validator.report.figures.layers import LAYER_METRICS
from validator.report.figures.positions import token_errors
from validator.report.finding_text import finding_section
from validator.report.page.data import page_data
from validator.report.page.document import render
from validator.report.page.metadata import facts_of
from validator.report.page.tables import value_tables
from validator.report.page.tree import tree_of
from validator.report.screen import Section

__all__ = ["SearchPath", "to_html"]

_LISTED = 40
"""Of modules that something is said of, so many are named."""

_FEW = 8
"""In a caption, which is read out whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPath:
    """The steps of a search as a table, and what it says of them.

    Attributes:
        columns: names of the columns.
        rows: a row a step.
        lines: sentences below the table.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()


def to_html(outcome: Outcome, *, search: SearchPath | None = None) -> str:
    """Return the page of an outcome.

    Args:
        outcome: of a run; with profiles for the figures of single edges.
        search: how the outcome was searched for, where it was.
    """
    row, first = facts.first_judgement(outcome), facts.first_divergence(outcome)
    data = page_data(outcome)
    headline = text.headline(outcome)
    return render(
        "outcome.html.jinja",
        title=headline,
        script="script.js",
        data=data,
        headline=headline,
        subject=facts.subject(outcome),
        outcome=outcome,
        search=search,
        first=None if first is None else edge_label(first if row is None else outcome.judgements[row]),
        distribution=list(text.distribution_rows(outcome)),
        has_floor="shapes" in (data["figures"]["kl"] or {"layout": {}})["layout"],
        sections=[_numbered(outcome, number) for number in range(len(outcome.findings))],
        checked={check: n for check, n in facts.checked(outcome).items() if n},
        metrics=list(LAYER_METRICS),
        left_out_of_positions=_left_out_of_positions(outcome),
        tables=value_tables(outcome, data["figures"]),
        tree=tree_of(outcome),
        facts=facts_of(outcome),
        unchecked=_by_reason(outcome),
        unobservable=_kinds(outcome.unobservable),
        has_profiles=any(judgement.profile is not None for judgement in outcome.judgements),
    )


def _numbered(outcome: Outcome, number: int) -> Section:
    finding = outcome.findings[number]
    is_first = finding is facts.first_divergence(outcome)
    return finding_section(outcome, finding, place="first " if is_first else "")


def _left_out_of_positions(outcome: Outcome) -> str:
    found = token_errors(outcome)
    if found is None or not found.left_out:
        return ""
    shown = phrases.listing(found.left_out, _FEW)
    return f"Left out are edges without a dim of {found.size} tokens: {shown}."


def _by_reason(outcome: Outcome) -> dict[str, str]:
    """Return the modules that were not checked, by the reason."""
    found: dict[str, list[str]] = {}
    for item in outcome.unchecked:
        found.setdefault(item.why, []).append(phrases.module_name(item.module))
    return {why: phrases.listing(modules, _LISTED) for why, modules in found.items()}


def _kinds(items: tuple[Unobservable, ...]) -> list[Mapping[str, str]]:
    """Return the kinds of fault that would not have shown, each with the modules it could be in."""
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for item in items:
        found.setdefault((item.what, item.why, item.propose), {})[phrases.module_name(item.module)] = None
    return [
        {"what": what, "why": why, "propose": propose, "modules": phrases.listing(list(modules), _LISTED)}
        for (what, why, propose), modules in found.items()
    ]
