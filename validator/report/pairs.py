"""What `validator.compare` returns: a comparison of two captures that shows, saves and tabulates itself."""

import dataclasses
import io
import json
import math
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from validator.checks.findings import Verdict
from validator.comparison import Comparison, Pair, Slice
from validator.numerics.metrics import Metrics
from validator.report import phrases
from validator.report.json_report import SCHEMA_VERSION, plain
from validator.report.result import EXIT_CODES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ComparisonResult"]

_SHOWN = 15
_PAIR_COLUMNS = (
    "module",
    "candidate_module",
    "call",
    "side",
    "path",
    "rank",
    "reference_dtype",
    "candidate_dtype",
    "shape",
)
_METRIC_COLUMNS = tuple(
    f.name for f in dataclasses.fields(Metrics) if f.name not in ("dims", "ulp_steps_histogram")
)
_SLICE_COLUMNS = ("worst_slice_dim", "worst_slice_meaning", "worst_slice_index", "worst_slice_rel_l2")


@dataclasses.dataclass(frozen=True, slots=True)
class ComparisonResult:
    """The answer to "how far apart are these two captures?". It prints as one screen of text."""

    comparison: Comparison

    @property
    def verdict(self) -> Verdict:
        """`aligned` where every element is the reference's, rounded once at most, else `inconclusive`."""
        return self.comparison.verdict

    @property
    def exit_code(self) -> int:
        """0 aligned, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    def to_frame(self) -> "pd.DataFrame":
        """Return one row a tensor, in execution order, parameters first."""
        import pandas as pd

        rows = [
            {name: getattr(pair, name) for name in _PAIR_COLUMNS}
            | {name: getattr(pair.metrics, name) for name in _METRIC_COLUMNS}
            | dict(zip(_SLICE_COLUMNS, _astuple(_worst_slice(pair)), strict=True))
            for pair in self.comparison.pairs
        ]
        frame = pd.DataFrame(rows, columns=[*_PAIR_COLUMNS, *_METRIC_COLUMNS, *_SLICE_COLUMNS])
        counts = ["rank", "worst_slice_dim", "worst_slice_index"]
        counts += [name for name in _METRIC_COLUMNS if name.startswith("ulp_steps")]
        return frame.astype(dict.fromkeys(counts, "Int64"))

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1, of the kind `comparison`."""
        comparison = self.comparison
        document: dict[str, Any] = plain(
            {
                "schema": SCHEMA_VERSION,
                "verdict": comparison.verdict,
                "reference": comparison.reference,
                "candidate": comparison.candidate,
                "pairs": [_pair_json(pair) for pair in comparison.pairs],
                "why_inconclusive": comparison.why_inconclusive,
                "notes": comparison.notes,
            }
        )
        return document

    def write_json(self, path: str | PathLike[str]) -> None:
        """Write the document of schema 1 to `path`, replacing what is there."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        """Return the terminal text without colours, 120 columns wide."""
        stream = io.StringIO()
        Console(file=stream, width=120, color_system=None, legacy_windows=False).print(self)
        return stream.getvalue().rstrip("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the verdict, the worst pairs, and what else a reader must know."""
        pairs = self.comparison.pairs
        differing = sorted((pair for pair in pairs if pair.differs), key=_badness, reverse=True)
        style = "bold green" if self.verdict is Verdict.ALIGNED else "bold yellow"
        yield Text(_headline(self.comparison, len(differing)), style=style)
        if differing:
            yield Text("")
            yield _table(differing[:_SHOWN])
        remarks = Table.grid(padding=(0, 2))
        for label, text in _remarks(self.comparison, differing):
            remarks.add_row("", Text(label, style="dim"), Text(phrases.printable(text)))
        if remarks.row_count:
            yield Text("")
            yield remarks

    def _repr_html_(self) -> str:
        console = Console(record=True, file=io.StringIO(), width=120)
        console.print(self)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _pair_json(pair: Pair) -> dict[str, Any]:
    metrics = {name: getattr(pair.metrics, name) for name in _METRIC_COLUMNS}
    return {
        **{name: getattr(pair, name) for name in _PAIR_COLUMNS},
        "metrics": {**metrics, "ulp_steps_histogram": pair.metrics.ulp_steps_histogram},
        "slices": [dataclasses.asdict(worst) for worst in pair.slices],
        "ranks": [{"rank": rank, "rel_l2": rel_l2} for rank, rel_l2 in pair.ranks.items()],
    }


def _headline(comparison: Comparison, differing: int) -> str:
    total = phrases.count(len(comparison.pairs), "tensor")
    if comparison.verdict is Verdict.ALIGNED:
        return f"aligned: {total}, every element the reference's own, rounded once at most"
    if differing:
        return (
            f"inconclusive: {differing} of {total} differ, and nothing says how far rounding can carry them"
        )
    return f"inconclusive: {total} agree, but not all could be compared"


def _table(pairs: list[Pair]) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    for name in ("worst first", "tensor"):
        table.add_column(name, overflow="fold")
    for name in ("rel_l2", "max_abs", "ulp p99", "ulp max", "differ"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worst slice", overflow="fold")
    for pair in pairs:
        metrics = pair.metrics
        cells = (
            phrases.module_name(pair.module),
            _tensor_name(pair),
            _figure(metrics.rel_l2),
            _figure(metrics.max_abs),
            _figure(metrics.ulp_steps_p99),
            _figure(metrics.ulp_steps_max),
            phrases.percent(metrics.mismatched, metrics.elements or 1),
            _slice_name(pair),
        )
        table.add_row(*(Text(phrases.printable(cell)) for cell in cells))
    return table


def _remarks(comparison: Comparison, differing: list[Pair]) -> Iterator[tuple[str, str]]:
    if len(differing) > _SHOWN:
        yield "more", f"{len(differing) - _SHOWN} more differ: --csv FILE or --json FILE has all of them"
    first = comparison.first_difference
    if first is not None:
        yield "first", f"{phrases.module_name(first.module)}, {_tensor_name(first)} differs first"
    broken = [pair for pair in differing if pair.metrics.class_mismatched]
    if broken:
        yield "class", f"NaN or infinity on one side alone in {phrases.count(len(broken), 'tensor')}"
    for why in comparison.why_inconclusive:
        yield "why", why
    for note in comparison.notes:
        yield "note", note
    if differing:
        yield "next", "validator check TARGET --capture CANDIDATE judges each operator of a capture"


def _tensor_name(pair: Pair) -> str:
    call = f", call {pair.call}" if pair.call else ""
    rank = "" if pair.rank is None else f", rank {pair.rank}"
    path = pair.path.rpartition(".")[2] if pair.side == "parameter" else pair.path
    return (pair.side if path in ("", pair.side) else f"{pair.side} {path}") + call + rank


def _badness(pair: Pair) -> tuple[bool, float, int]:
    rel_l2 = pair.metrics.rel_l2
    return pair.metrics.class_mismatched > 0, -1.0 if math.isnan(rel_l2) else rel_l2, pair.metrics.mismatched


def _worst_slice(pair: Pair) -> Slice | None:
    return max(pair.slices, key=lambda found: found.rel_l2, default=None)


def _slice_name(pair: Pair) -> str:
    worst = _worst_slice(pair)
    if worst is None or not worst.rel_l2:
        return ""
    return f"{worst.meaning or f'dim {worst.dim}'} {worst.index}: {phrases.number(worst.rel_l2)}"


def _astuple(worst: Slice | None) -> tuple[Any, ...]:
    return (None,) * len(_SLICE_COLUMNS) if worst is None else dataclasses.astuple(worst)


def _figure(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else phrases.number(value)
