"""What `validator bisect` shows and saves: a result of `check` with the path that was taken and its cost."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from validator import digits
from validator.bisecting.path import Bisection, Claim, Cost, Step
from validator.report import facts, json_report, phrases, text
from validator.report.digest import digest
from validator.report.result import Result
from validator.report.screen import Column, Kind, Row, Screen, Section, Table

__all__ = ["BisectionResult"]

_COLUMNS = (
    Column(name="step"),
    Column(name="captured"),
    Column(name="runs", kind=Kind.NUMBER),
    Column(name="size", kind=Kind.NUMBER),
    Column(name="verdict"),
)
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class BisectionResult(Result):
    """The answer to "which module is the first to go wrong?", as far as edges were looked at.

    Attributes:
        path: the steps taken, in order.
        cost: of all of them.
        claim: what was verified of the first finding; None where there is none.
    """

    path: tuple[Step, ...]
    cost: Cost
    claim: Claim | None = None

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
        return cls(replace(outcome, run=run), bisection.path, bisection.cost, bisection.claim)

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1 (`validator/report/schema.json`): a result with path and cost."""
        made: dict[str, Any] = json_report.plain(
            {
                **json_report.to_json(self.outcome),
                "path": [step.to_json() for step in self.path],
                "cost": asdict(self.cost),
                "verified": None if self.claim is None else _claim(self.claim),
            }
        )
        return made

    def to_html(self) -> str:
        """Return a page with all figures; those of single edges need profiles, which the search can keep."""
        from validator.report.page.rendering import SearchPath, to_html

        search = SearchPath(
            columns=tuple(column.name for column in _COLUMNS),
            rows=tuple(map(_row, self.path)),
            lines=tuple(f"{row.label}: {row.text}" for row in _conclusions(self)),
        )
        return to_html(self.outcome, search=search)

    def __rich__(self) -> Screen:
        """Return what a terminal shows: that of a result, and the path."""
        return _with_path(text.render(self.outcome), self)

    def page(self) -> Screen:
        """Return what Markdown and a notebook show: that of a result, and the path."""
        return _with_path(digest(self.outcome), self)


def _with_path(screen: Screen, found: BisectionResult) -> Screen:
    path = Table(title="path of the search", columns=_COLUMNS, rows=tuple(map(_row, found.path)))
    end = Section(title="cost and proof", rows=tuple(_conclusions(found)))
    return replace(screen, sections=(*screen.sections, path, end))


def _row(step: Step) -> tuple[str, ...]:
    return step.name, _captured(step), str(step.runs), _size(step.size_bytes), step.verdict


def _conclusions(found: BisectionResult) -> Iterator[Row]:
    yield Row(label="cost", text=_cost(found.cost, facts.world_size(found.outcome)))
    if found.claim is not None:
        yield Row(label="verified", text=_verified(found.claim))


def _captured(step: Step) -> str:
    modules = phrases.count(step.captured, "module")
    if step.name == "boundaries":
        return f"{modules}: all but the insides of {phrases.count(len(step.modules), 'block')}"
    return f"{modules}: {step.extent}"


def _cost(cost: Cost, ranks: int) -> str:
    if ranks > 1:
        beside = ", and more where ranks hold copies"
    else:
        share = digits.percent(cost.size_bytes, cost.full_bytes) if cost.full_bytes else "-"
        beside = f" ({share} of that were captured)"
    return (
        f"{phrases.count(cost.runs, 'candidate run')}, {_size(cost.size_bytes)} captured, "
        f"{_size(cost.largest_bytes)} at a time; a capture of everything takes 1 run and about "
        f"{_size(cost.full_bytes)}{beside}"
    )


def _verified(claim: Claim) -> str:
    names = [phrases.edge_name(edge) for edge in (claim.finding, claim.before) if edge is not None]
    if claim.before is not None and names[0] == names[1]:  # several outputs of one module, say
        names = [
            phrases.full_edge_name(edge, call=edge.call, rank=edge.rank)
            for edge in (claim.finding, claim.before)
        ]
    said = f"on the candidate's own inputs {names[0]} is off, and "
    if claim.before is None:
        said += "no edge that was judged comes before it"
    else:
        said += f"the edge before it, {names[1]}, is {claim.before.verdict.replace('_', ' ')}"
    if not claim.as_functions:
        return said
    blocks = phrases.count(claim.as_functions, "block")
    return (
        f"{said}; {blocks} before it {'is' if claim.as_functions == 1 else 'are'} aligned as one function "
        "each, which need not show what is smaller than the rounding in a block"
    )


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
