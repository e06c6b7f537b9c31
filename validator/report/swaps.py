"""What `validator bisect --swap` shows and saves: a headline, a table a search, and JSON of schema 1."""

import dataclasses
import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from validator.checks.findings import Verdict
from validator.report import phrases
from validator.report.json_report import SCHEMA_VERSION, plain
from validator.report.result import EXIT_CODES
from validator.report.screen import plain_text
from validator.swapping.metrics import Kind
from validator.swapping.records import Level, Swap

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SwapResult"]

_STYLES = {
    Verdict.ALIGNED: "bold green",
    Verdict.DIVERGENT: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}
_NAMED, _ROWS, _LISTED = 3, 12, 3
_COLUMNS = ("level", "name", "alone", "lost_from_set", "lost_from_whole")


@dataclasses.dataclass(frozen=True, slots=True)
class SwapResult:
    """The answer to "which modules, or which options, make the candidate this different?"."""

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

    def write_json(self, path: str | PathLike[str]) -> None:
        """Write the document of schema 1 to `path`, replacing what is there."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        """Return the terminal text without colours, 100 columns wide."""
        return plain_text(self, 100)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the verdict, a table for each search, and what else a reader must know."""
        swap = self.swap
        yield Text(phrases.printable(_headline(swap)), style=_STYLES[swap.verdict])
        for level in swap.levels:
            if level.found.members:
                yield Text("")
                yield _table(level)
        remarks = Table.grid(padding=(0, 2))
        for label, text in _remarks(swap):
            remarks.add_row("", Text(label, style="dim"), Text(phrases.printable(text)))
        yield Text("")
        yield remarks


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
    found = level.found
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column(f"{phrases.count(len(found.members), level.name[:-1])} of {len(level.tried)}")
    for name in ("alone", "gone without it", "of the set's"):
        table.add_column(name, justify="right", no_wrap=True)
    for member in found.members[:_ROWS]:
        table.add_row(
            Text(phrases.printable(member.item)),
            _figure(member.alone),
            _figure(member.lost_from_whole),
            _figure(member.lost_from_set),
        )
    if len(found.members) > _ROWS:
        table.add_row(Text(f"... and {len(found.members) - _ROWS} more (see --json)"), "", "", "")
    table.add_row(Text("together", style="dim"), _figure(found.value), "", "")
    table.add_row(Text("all others", style="dim"), _figure(found.rest), "", "")
    return table


def _remarks(swap: Swap) -> Iterator[tuple[str, str]]:
    noise = "not known" if swap.noise is None else f"explains {_figure(swap.noise)}"
    yield (
        "measured",
        f"{swap.metric}, {swap.metric.unit}, at {phrases.count(swap.positions, 'position')}; noise {noise}",
    )
    if swap.tokens is not None:
        yield "token", f"{swap.tokens[0]} of the reference, {swap.tokens[1]} of the candidate"
    if swap.baseline:
        yield "off", f"with all options off the candidate shows {_figure(swap.baseline)}"
    if swap.limit is not None and swap.levels:
        yield "limit", f"a set has to show {_figure(swap.limit)}"
    for level in swap.levels:
        if level.found.members:
            yield "set", f"{level.name}: {_proof(level)}"
    left = [level for level in swap.levels[:1] if swap.noise is not None and level.found.members]
    for level in left:
        if level.found.rest > max(swap.noise or 0.0, swap.baseline):
            yield "more", "the others show more than noise explains, too"
    if swap.levels:
        yield "runs", phrases.count(swap.runs, "hybrid")
    if swap.unswappable:
        shown = [f"{name} ({why})" for name, why in swap.unswappable.items()]
        yield "not apart", phrases.listing(shown, _LISTED, "; ")
    for note in swap.notes:
        yield "note", note
    if swap.levels and swap.metric.kind is not Kind.TOKEN and swap.levels[0].name != "options":
        yield "next", f"validator check {swap.source} judges each operator by itself"


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
            return f"a change of the perplexity by {phrases.percent(value)}"
        case Kind.FLIPS:
            return f"{phrases.count(round(value), 'flipped token')}"
        case Kind.TOKEN:
            place = ", ".join(map(str, swap.metric.position or ()))
            return f"the flipped token at [{place}], whose margin falls by {_figure(value)}"


def _figure(value: float) -> str:
    return phrases.number(value)
