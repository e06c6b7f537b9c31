"""What `make detection` prints and writes: faults by kind, healthy ports by model, common rules beside."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = [
    "ALIGNED",
    "DETECTED",
    "ERROR",
    "EXACT",
    "FALSE_ALARM",
    "INCONCLUSIVE",
    "MISSED",
    "Record",
    "as_markdown",
    "show",
    "tables",
]

Record = dict[str, Any]

# What became of a case. A fault: localised exactly, or found but not named as it must be, or missed.
EXACT, DETECTED, MISSED = "localised exactly", "detected", "missed"
ALIGNED, FALSE_ALARM, INCONCLUSIVE = "aligned", "false alarm", "inconclusive"
ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A table.

    Attributes:
        title: what it shows.
        columns: heads.
        rows: cells; the first is a name, the others are numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(records: Sequence[Record]) -> list[Figures]:
    """Return what became of faults and healthy ports, and what common rules say of the same runs."""
    faulty = [record for record in records if record["fault"] is not None]
    healthy = [record for record in records if record["fault"] is None]
    found = [
        _outcomes("Planted faults", "kind", faulty, (EXACT, DETECTED, MISSED, ERROR)),
        _outcomes("Healthy ports", "model", healthy, (ALIGNED, FALSE_ALARM, INCONCLUSIVE, ERROR)),
    ]
    judged = [record for record in records if "rules" in record]
    if judged:
        found.append(_rules(judged))
    return [figures for figures in found if figures.rows]


def _outcomes(title: str, head: str, records: Sequence[Record], outcomes: tuple[str, ...]) -> Figures:
    kinds = list(dict.fromkeys(record["kind"] for record in records))
    rows = []
    for kind in (*kinds, "all") if kinds else ():
        chosen = [record for record in records if kind in (record["kind"], "all")]
        counts = Counter(record["outcome"] for record in chosen)
        seconds = statistics.median(record["seconds"] for record in chosen)
        cells = (str(counts[outcome]) for outcome in outcomes)
        rows.append((kind, str(len(chosen)), *cells, f"{seconds:.1f}"))
    return Figures(title=title, columns=(head, "cases", *outcomes, "median s"), rows=tuple(rows))


def _rules(judged: Sequence[Record]) -> Figures:
    faulty = [record for record in judged if record["fault"] is not None]
    healthy = [record for record in judged if record["fault"] is None]
    ours = {id(record): record["outcome"] in (EXACT, DETECTED, FALSE_ALARM) for record in judged}
    rows = [("validator", _share(ours[id(r)] for r in faulty), _share(ours[id(r)] for r in healthy))]
    for name in judged[0]["rules"]:
        rows.append((name, *(_share(r["rules"][name] for r in group) for group in (faulty, healthy))))
    columns = ("judged by", "faults seen", "healthy ports called wrong")
    return Figures(title="The same runs by common rules on the logits", columns=columns, rows=tuple(rows))


def _share(said: Iterable[bool]) -> str:
    answers = list(said)
    if not answers:
        return "-"
    return f"{sum(answers)} of {len(answers)} ({100 * sum(answers) / len(answers):.1f}%)"


def remarks(records: Sequence[Record]) -> list[str]:
    """Return a line for each case that is not what it should be, and for results of older code."""
    lines = [
        f"{record['outcome']}: {record['label']}: {record['why']}"
        for record in records
        if record["outcome"] not in (EXACT, ALIGNED)
    ]
    versions = Counter(record["version"] for record in records)
    if len(versions) > 1:
        counts = ", ".join(f"{count} by {version}" for version, count in versions.most_common())
        lines.append(f"judged by several versions of the code: {counts}")
    return lines


def show(records: Sequence[Record], console: Console) -> None:
    """Print the tables, and what is not as it should be."""
    for figures in tables(records):
        table = Table(title=figures.title)
        for number, column in enumerate(figures.columns):
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in figures.rows:
            table.add_row(*row)
        console.print(table)
    for line in remarks(records):
        console.print(line, markup=False, soft_wrap=True)


def as_markdown(records: Sequence[Record]) -> str:
    """Return the tables, and what is not as it should be, as Markdown."""
    parts = []
    for figures in tables(records):
        head = "| " + " | ".join(figures.columns) + " |"
        rule = "|" + "|".join(["---", *["---:"] * (len(figures.columns) - 1)]) + "|"
        rows = ["| " + " | ".join(row) + " |" for row in figures.rows]
        parts.append("\n".join([f"## {figures.title}", "", head, rule, *rows]))
    lines = remarks(records)
    if lines:
        parts.append("\n".join(["## Not as it should be", "", *(f"- {line}" for line in lines)]))
    return "\n\n".join(parts) + "\n"
