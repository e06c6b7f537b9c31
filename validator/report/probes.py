"""The result of a probe: one screen of text, and a JSON document of schema 1."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from validator.checks.findings import Verdict
from validator.probing.bandwidth import bus_bytes
from validator.probing.problems import Problem
from validator.probing.summary import ProbeOutcome, Row
from validator.report import phrases
from validator.report.json_report import SCHEMA_VERSION, plain
from validator.report.result import EXIT_CODES

__all__ = ["ProbeResult", "probes_table"]

_STYLES = {
    Verdict.ALIGNED: "bold green",
    Verdict.DIVERGENT: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}
_HEADLINES = {
    Verdict.ALIGNED: "every answer is right",
    Verdict.DIVERGENT: "wrong answers",
    Verdict.INCONCLUSIVE: "some calls could not be checked",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult:
    """What `validator probe` shows and saves."""

    outcome: ProbeOutcome

    @property
    def exit_code(self) -> int:
        """0 every answer is right, 1 one is wrong, 3 something could not be checked."""
        return EXIT_CODES[self.outcome.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return a document of schema 1: plain dicts, lists, strings, numbers and None."""
        outcome = self.outcome
        made: dict[str, Any] = plain(
            {
                "schema": SCHEMA_VERSION,
                "probe": outcome.name,
                "verdict": outcome.verdict,
                "run": {
                    "world_size": outcome.world_size,
                    "backend": outcome.backend,
                    "device": outcome.device,
                },
                "problems": [_problem_json(problem) for problem in outcome.problems if not problem.hazard],
                "hazards": [_problem_json(problem) for problem in outcome.problems if problem.hazard],
                "calls": [_row_json(row, outcome.world_size) for row in outcome.rows],
                "refused": [
                    {"call": call, "case": case, "dtypes": dtypes, "message": message}
                    for call, case, dtypes, message in outcome.refused
                ],
                "unchecked": outcome.unchecked,
            }
        )
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        outcome = self.outcome
        ran = f"{outcome.world_size} ranks, {outcome.backend} on {outcome.device}"
        yield Text.assemble(
            (f"{outcome.name}: {_HEADLINES[outcome.verdict]}", _STYLES[outcome.verdict]), f" ({ran})"
        )
        for problem in outcome.problems:
            if not problem.hazard:
                yield Text.assemble(("  wrong   ", "red"), f"{problem.summary}. {_with(problem)}")
        for call in outcome.unchecked:
            yield Text.assemble(("  none    ", "yellow"), f"{call}: refused for every type")
        yield _answers(outcome)
        yield ""
        yield _bandwidths(outcome)
        yield ""
        yield from map(Text, _orders(outcome))
        for problem in outcome.problems:
            if problem.hazard:
                yield Text.assemble(
                    ("hazard  ", "yellow"),
                    f"{problem.call}, {problem.case}: silently wrong. torch promises nothing for such "
                    "tensors: call .contiguous() first",
                )
        for line in _refusals(outcome):
            yield Text.assemble(("refused ", "dim"), line)


def probes_table(probes: dict[str, str]) -> Table:
    """Return one row a probe: its name and what it says of itself."""
    table = Table("probe", "what it probes", box=None, pad_edge=False)
    for name, text in probes.items():
        table.add_row(Text(name), Text(text))
    return table


def _answers(outcome: ProbeOutcome) -> Table:
    table = Table("call", "right in", "wrong in", "deterministic", box=None, pad_edge=False)
    for row in outcome.rows:
        deterministic = {True: "yes", False: "no", None: ""}[row.deterministic]
        table.add_row(
            Text(row.call), Text(_types(row.right)), Text(_types(row.wrong), style="red"), deterministic
        )
    return table


def _bandwidths(outcome: ProbeOutcome) -> Table:
    rows = [row for row in outcome.rows if row.bandwidths]
    sizes = sorted({size for row in rows for size in row.bandwidths})
    table = Table("GB/s on the bus", *map(_size, sizes), box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            Text(row.call),
            *(
                f"{bus_bytes(row.call, size, outcome.world_size) / row.bandwidths[size] / 1e9:.2g}"
                if size in row.bandwidths
                else ""
                for size in sizes
            ),
        )
    return table


def _orders(outcome: ProbeOutcome) -> Iterator[str]:
    for row in outcome.rows:
        alike: dict[str, list[tuple[str, int]]] = {}
        for (dtype, size), (order, formats) in row.orders.items():
            alike.setdefault(f"{order.text}; {_rounding(dtype, formats)}", []).append((dtype, size))
        for text, found in alike.items():
            dtypes = tuple(dict.fromkeys(dtype for dtype, _ in found))
            sizes = sorted({size for _, size in found})
            at = "" if len(alike) == 1 else f", {' and '.join(map(str, sizes))} elements"
            yield f"{row.call} adds: {text} ({_types(dtypes)}{at})"


def _rounding(dtype: str, formats: tuple[str, ...]) -> str:
    if not formats:
        return "rounding in no way that was tried"
    if dtype not in formats:
        return f"in {' or '.join(formats)}, and rounds once"
    return "rounds each sum" if len(formats) == 1 else "rounds each sum, or once"


def _refusals(outcome: ProbeOutcome) -> Iterator[str]:
    rows = {row.call: row for row in outcome.rows}
    alike: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for call, case, dtypes, message in outcome.refused:
        always = all(dtype in rows[call].refused for dtype in dtypes)
        alike.setdefault((dtypes, message), []).append(call if always else f"{call} ({case})")
    for (dtypes, message), calls in alike.items():
        yield f"{_types(dtypes)} by {', '.join(dict.fromkeys(calls))}: {message}"


def _types(dtypes: Sequence[str]) -> str:
    """Return dtypes in few words: `float64/32/16 bfloat16`."""
    words: list[str] = []
    before = ""
    for dtype in dtypes:
        kind = dtype.rstrip("0123456789")
        if kind == before and kind != dtype:
            words[-1] += f"/{dtype.removeprefix(kind)}"
        else:
            words.append(dtype)
        before = kind
    return " ".join(words)


def _size(size_bytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def _with(problem: Problem) -> str:
    return f"{_types(problem.dtypes)}; {problem.case}; seen by {phrases.count(len(problem.seen_by), 'rank')}"


def _problem_json(problem: Problem) -> dict[str, Any]:
    return {
        "call": problem.call,
        "case": problem.case,
        "fault": problem.fault,
        "ranks": problem.guilty,
        "seen_by": problem.seen_by,
        "source": problem.blame.source,
        "elements": {
            "first": problem.blame.first,
            "last": problem.blame.last,
            "count": problem.blame.count,
            "of": problem.blame.size,
        },
        "right": problem.blame.right,
        "got": problem.blame.got,
        "dtypes": problem.dtypes,
        "sizes": problem.sizes,
        "summary": problem.summary,
    }


def _row_json(row: Row, world_size: int) -> dict[str, Any]:
    return {
        "call": row.call,
        "right": row.right,
        "wrong": row.wrong,
        "refused": row.refused,
        "deterministic": row.deterministic,
        "orders": [
            {"dtype": dtype, "size": size, "kind": order.kind, "order": order.text, "formats": formats}
            for (dtype, size), (order, formats) in row.orders.items()
        ],
        "bandwidth": [
            {
                "bytes": size,
                "seconds": seconds,
                "bus_bytes_per_second": bus_bytes(row.call, size, world_size) / seconds,
            }
            for size, seconds in row.bandwidths.items()
        ],
    }
