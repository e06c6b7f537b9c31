"""The page: one file that opens from disk, asks nothing of any network, and shows every name as text."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from validator.checks.findings import Outcome, Unobservable
from validator.report import facts, phrases, text
from validator.report.figures.drawing import edge_label
from validator.report.figures.layers import LAYER_METRICS
from validator.report.finding_text import finding_section
from validator.report.page.data import page_data
from validator.report.page.metadata import facts_of
from validator.report.page.packing import packed_data, packed_plotly, part
from validator.report.page.tree import tree_of
from validator.report.screen import Section

__all__ = ["SearchPath", "to_html"]

_LISTED = 40
"""Of modules that something is said of, so many are named."""


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
    return _template().render(
        headline=text.headline(outcome),
        subject=facts.subject(outcome),
        outcome=outcome,
        search=search,
        first=None if first is None else edge_label(first if row is None else outcome.judgements[row]),
        sections=[_numbered(outcome, number) for number in range(len(outcome.findings))],
        checked={check: n for check, n in facts.checked(outcome).items() if n},
        metrics=list(LAYER_METRICS),
        tree=tree_of(outcome),
        facts=facts_of(outcome),
        unchecked=_by_reason(outcome),
        unobservable=_kinds(outcome.unobservable),
        has_profiles=any(judgement.profile is not None for judgement in outcome.judgements),
        # What is not ours has no such number, and the page lets no such thing run.
        nonce=secrets.token_urlsafe(16),
        style=Markup(part("style.css")),
        script=Markup(part("drawing.js") + part("script.js")),
        plotly=packed_plotly(),
        data=packed_data(page_data(outcome)),
    )


def _template() -> Template:
    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    environment.filters["number"] = phrases.number
    environment.filters["percent"] = phrases.percent
    return environment.from_string(part("template.html.jinja"))


def _shown(value: Any) -> Any:
    """Spell out control characters, those that turn the direction of text among them."""
    return phrases.shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _numbered(outcome: Outcome, number: int) -> Section:
    finding = outcome.findings[number]
    is_first = finding is facts.first_divergence(outcome)
    return finding_section(outcome, finding, place="first " if is_first else "")


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
