"""What `validator bisect --swap` shows and saves: a headline, a table a search, and JSON of schema 1."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from validator import digits
from validator.checks.findings import Verdict
from validator.report import phrases
from validator.report.json_report import SCHEMA_VERSION, plain
from validator.report.result import EXIT_CODES
from validator.report.screen import Column, Row, Screen, Section, Table
from validator.report.screen import Kind as ColumnKind
from validator.report.shown import Shown
from validator.report.text import STYLES
from validator.swapping.metrics import Kind
from validator.swapping.records import Level, Swap

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SwapResult"]

_NAMED, _ROWS, _LISTED = 3, 12, 3
_COLUMNS = ("level", "name", "alone", "lost_from_set", "lost_from_whole")


@dataclasses.dataclass(frozen=True, slots=True)
class SwapResult(Shown):
    """The answer to "which modules, or which options, make the candidate this different?"."""

    text_width: ClassVar[int] = 100

    swap: Swap

    @property
    def verdict(self) -> Verdict:
        """Of the whole candidate."""
        return self.swap.verdict

    @property
    def exit_code(self) -> int:
        """0 there is nothing to explain, 1 there is, 3 what noise explains is not known."""
        return EXIT_CODES[self.swap.verdict]

    def to_frame(self) -> "pd.DataFrame":
        """Return one row a member of each set, coarse sets first."""
        import pandas as pd

        rows = [
            (number, member.item, member.alone, member.lost_from_set, member.lost_from_whole)
            for number, level in enumerate(self.swap.levels)
            for member in level.found.members
        ]
        return pd.DataFrame(rows, columns=list(_COLUMNS))

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1, of the kind `swap`."""
        swap = self.swap
        document: dict[str, Any] = plain(
            {
                "schema": SCHEMA_VERSION,
                "verdict": swap.verdict,
                "metric": {
                    "name": str(swap.metric),
                    "unit": swap.metric.unit,
                    "positions": swap.positions,
                    "tokens": swap.tokens,
                },
                "candidate": swap.candidate,
                "baseline": swap.baseline,
                "noise": swap.noise,
                "limit": swap.limit,
                "set": swap.found,
                "levels": [_level_json(level) for level in swap.levels],
                "runs": swap.runs,
                "unswappable": [{"module": name, "why": why} for name, why in swap.unswappable.items()],
                "notes": swap.notes,
            }
        )
        return document

    def __rich__(self) -> Screen:
        """Return the verdict, a table for each search, and what else a reader must know."""
        swap = self.swap
        tables = (_table(level) for level in swap.levels)
        return Screen(
            headline=_headline(swap),
            style=STYLES[swap.verdict],
            sections=(*tables, Section(title="how it was measured", rows=tuple(_remarks(swap)))),
        )


def _level_json(level: Level) -> dict[str, Any]:
    found = level.found
    return {
        "level": level.name,
        "tried": level.tried,
        "set": [
            {
                "name": member.item,
                "alone": member.alone,
                "lost_from_set": member.lost_from_set,
                "lost_from_whole": member.lost_from_whole,
            }
            for member in found.members
        ],
        "value": found.value,
        "whole": found.whole,
        "rest": found.rest,
        "is_smallest": found.is_smallest,
        "runs": level.runs,
    }


def _headline(swap: Swap) -> str:
    whole = _amount(swap, swap.candidate)
    if swap.noise is not None and swap.candidate <= swap.noise:
        return f"aligned: {whole} is within what noise explains, {_figure(swap.noise)}"
    if swap.verdict is Verdict.ALIGNED:
        return f"aligned: {whole} is below the limit of {_figure(swap.limit or 0.0)}"
    members = [member.item for member in swap.levels[0].found.members] if swap.levels else []
    if not members:
        return f"{swap.verdict}: none of the options brings {whole}: with all of them off it is there already"
    verb = "explains" if len(members) == 1 else "together explain"
    return f"{swap.verdict}: {phrases.listing(members, _NAMED)} {verb} {whole}"


def _table(level: Level) -> Table:
    """Return a row a member; none where the set is empty, and the table is not shown."""
    found = level.found
    rows = [
        (member.item, *map(_figure, (member.alone, member.lost_from_whole, member.lost_from_set)))
        for member in found.members[:_ROWS]
    ]
    if len(found.members) > _ROWS:
        rows.append((f"... and {len(found.members) - _ROWS} more (see --json)", "", "", ""))
    if rows:
        rows += [("together", _figure(found.value), "", ""), ("all others", _figure(found.rest), "", "")]
    kind, figures = level.name[:-1], ("alone", "gone without it", "of the set's")
    return Table(
        title=f"{phrases.count(len(found.members), kind)} of {len(level.tried)}",
        columns=(
            Column(name=kind),
            *(Column(name=name, kind=ColumnKind.NUMBER) for name in figures),
        ),
        rows=tuple(rows),
    )


def _remarks(swap: Swap) -> Iterator[Row]:
    noise = "not known" if swap.noise is None else f"explains {_figure(swap.noise)}"
    positions = phrases.count(swap.positions, "position")
    yield Row(label="measured", text=f"{swap.metric}, {swap.metric.unit}, at {positions}; noise {noise}")
    if swap.tokens is not None:
        yield Row(label="token", text=f"{swap.tokens[0]} of the reference, {swap.tokens[1]} of the candidate")
    if swap.baseline:
        yield Row(label="off", text=f"with all options off the candidate shows {_figure(swap.baseline)}")
    if swap.limit is not None and swap.levels:
        yield Row(label="limit", text=f"a set has to show {_figure(swap.limit)}")
    for level in swap.levels:
        if level.found.members:
            yield Row(label="set", text=f"{level.name}: {_proof(level)}")
    left = [level for level in swap.levels[:1] if swap.noise is not None and level.found.members]
    for level in left:
        if level.found.rest > max(swap.noise or 0.0, swap.baseline):
            yield Row(label="more", text="the others show more than noise explains, too")
    if swap.levels:
        yield Row(label="runs", text=phrases.count(swap.runs, "hybrid"))
    if swap.unswappable:
        shown = [f"{name} ({why})" for name, why in swap.unswappable.items()]
        yield Row(label="not apart", text=phrases.listing(shown, _LISTED, "; "))
    for note in swap.notes:
        yield Row(label="note", text=note)
    if swap.levels and swap.metric.kind is not Kind.TOKEN and swap.levels[0].name != "options":
        yield Row(label="next", text=f"validator check {swap.source} judges each operator by itself")


def _proof(level: Level) -> str:
    if len(level.found.members) < 2 or level.found.is_smallest:
        return "no smaller one shows as much"
    return "none of it can be left out; not all smaller sets were tried"


def _amount(swap: Swap, value: float) -> str:
    match swap.metric.kind:
        case Kind.KL:
            return f"a mean KL of {_figure(value)}"
        case Kind.KL_MAX:
            return f"a greatest KL of {_figure(value)}"
        case Kind.PERPLEXITY:
            return f"a change of the perplexity by {digits.percent(value)}"
        case Kind.FLIPS:
            return f"{phrases.count(round(value), 'flipped token')}"
        case Kind.TOKEN:
            place = ", ".join(map(str, swap.metric.position or ()))
            return f"the flipped token at [{place}], whose margin falls by {_figure(value)}"


def _figure(value: float) -> str:
    return digits.number(value)
