"""A search as terminal text and as JSON: a result of `check` with the path that was taken and its cost."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from validator.bisecting.path import Bisection, Claim, Cost, Step
from validator.checks.findings import Finding, Judgement, Verdict
from validator.report import facts, json_report, phrases, text
from validator.report.phrases import printable
from validator.report.result import EXIT_CODES
from validator.report.screen import plain_text

__all__ = ["BisectionResult"]

_COLUMNS = ("step", "captured", "runs", "size", "verdict")
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class BisectionResult:
    """The answer to "which module is the first to go wrong?"."""

    bisection: Bisection

    @classmethod
    def of(
        cls, bisection: Bisection, about: Mapping[str, Mapping[str, Any]], *, command: str | None
    ) -> "BisectionResult":
        """Return the result with what is known of both sides.

        Args:
            bisection: the search.
            about: what the run metadata of each side gets besides.
            command: that judges all of the candidate, or None.
        """
        outcome = bisection.outcome
        run: dict[str, Any] = {side: {**about[side], **outcome.run.get(side, {})} for side in about}
        run |= {} if command is None else {"command": command}
        return cls(replace(bisection, outcome=replace(outcome, run=run)))

    @property
    def verdict(self) -> Verdict:
        """Of what was looked at."""
        return self.bisection.outcome.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The edges that rounding can't explain, as far as they were looked at, in execution order."""
        return self.bisection.outcome.findings

    @property
    def first_divergence(self) -> Finding | None:
        """The first finding that is divergent, or None."""
        return facts.first_divergence(self.bisection.outcome)

    @property
    def exit_code(self) -> int:
        """0 aligned, 1 divergent or undeclared precision, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1 (`validator/report/schema.json`): a result with path and cost."""
        found = self.bisection
        made: dict[str, Any] = json_report.plain(
            {
                **json_report.to_json(found.outcome),
                "path": [step.to_json() for step in found.path],
                "cost": asdict(found.cost),
                "verified": None if found.claim is None else _claim(found.claim),
            }
        )
        return made

    def write_json(self, path: str | PathLike[str]) -> None:
        """Write the document of schema 1 to `path`, replacing what is there."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def to_html(self) -> str:
        """Return a page with all figures; those of single edges need profiles, which the search can keep."""
        from validator.report.page.rendering import SearchPath, to_html

        found = self.bisection
        search = SearchPath(
            columns=_COLUMNS, rows=tuple(map(_row, found.path)), lines=tuple(_conclusions(found))
        )
        return to_html(found.outcome, search=search)

    def write_html(self, path: str | PathLike[str]) -> None:
        """Write the page to `path`, replacing what is there."""
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def __str__(self) -> str:
        """Return the terminal text without colours, 80 columns wide."""
        return plain_text(self)

    def __rich__(self) -> RenderableType:
        """Return the terminal text for a rich console."""
        return Group(text.render(self.bisection.outcome), Text(""), *_path(self.bisection))


def _path(found: Bisection) -> Iterator[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("runs", "size") else "left", overflow="fold")
    for step in found.path:
        table.add_row(*map(printable, _row(step)))
    yield table
    yield Text("")
    for line in _conclusions(found):
        yield Text(printable(line))


def _row(step: Step) -> tuple[str, ...]:
    return step.name, _captured(step), str(step.runs), _size(step.size_bytes), step.verdict


def _conclusions(found: Bisection) -> Iterator[str]:
    yield _cost(found.cost, facts.world_size(found.outcome))
    if found.claim is not None:
        yield _verified(found.claim)


def _captured(step: Step) -> str:
    modules = phrases.count(step.captured, "module")
    if step.name == "boundaries":
        return f"{modules}: all but the insides of {phrases.count(len(step.modules), 'block')}"
    return f"{modules}: {step.extent}"


def _cost(cost: Cost, ranks: int) -> str:
    if ranks > 1:
        beside = ", and more where ranks hold copies"
    else:
        share = phrases.percent(cost.size_bytes, cost.full_bytes) if cost.full_bytes else "-"
        beside = f" ({share} of that were captured)"
    return (
        f"cost: {phrases.count(cost.runs, 'candidate run')}, {_size(cost.size_bytes)} captured, "
        f"{_size(cost.largest_bytes)} at a time; a capture of everything takes 1 run and about "
        f"{_size(cost.full_bytes)}{beside}"
    )


def _verified(claim: Claim) -> str:
    said = f"verified on the candidate's own inputs: {phrases.edge_name(claim.finding)} is off, and "
    if claim.before is None:
        said += "no edge that was judged comes before it"
    else:
        said += f"the edge before it, {_edge(claim.before)}, is {claim.before.verdict.replace('_', ' ')}"
    if not claim.as_functions:
        return said
    blocks = phrases.count(claim.as_functions, "block")
    return (
        f"{said}; {blocks} before it {'is' if claim.as_functions == 1 else 'are'} aligned as one function "
        "each, which need not show what is smaller than the rounding in a block"
    )


def _edge(judgement: Judgement) -> str:
    name = phrases.module_name(judgement.module)
    prefix = f"{judgement.module}." if judgement.module else ""
    return name if judgement.into is None else f"{name}, into {judgement.into.removeprefix(prefix)}"


def _claim(claim: Claim) -> dict[str, Any]:
    before = claim.before
    return {
        "module": claim.finding.module,
        "into": claim.finding.into,
        "before": None
        if before is None
        else {
            "module": before.module,
            "into": before.into,
            "path": before.path,
            "call": before.call,
            "check": before.check,
            "verdict": before.verdict,
        },
        "blocks_before": {"inside": claim.inside, "as_functions": claim.as_functions},
    }


def _size(size_bytes: int) -> str:
    size, unit = float(size_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"
