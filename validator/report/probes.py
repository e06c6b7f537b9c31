"""What `validator probe` shows and saves: one screen, a table, and a JSON document of schema 1."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table as RichTable
from rich.text import Text

from validator.checks.findings import Verdict
from validator.probing import summary
from validator.probing.bandwidth import bus_bytes
from validator.probing.problems import Problem
from validator.probing.summary import ProbeOutcome
from validator.report import phrases
from validator.report.json_report import SCHEMA_VERSION, plain
from validator.report.result import EXIT_CODES
from validator.report.screen import Column, Kind, Row, Screen, Section, Table
from validator.report.shown import Shown
from validator.report.text import STYLES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ProbeResult", "probes_table"]

_HEADLINES = {
    Verdict.ALIGNED: "every answer is right",
    Verdict.DIVERGENT: "wrong answers",
    Verdict.INCONCLUSIVE: "some calls could not be checked",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult(Shown):
    """The answer to "does this operator family do here what it promises?"."""

    outcome: ProbeOutcome

    @property
    def verdict(self) -> Verdict:
        """Of all calls that are promised to work."""
        return self.outcome.verdict

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
                "calls": [_call_json(row, outcome.world_size) for row in outcome.rows],
                "refused": [
                    {"call": call, "case": case, "dtypes": dtypes, "message": message}
                    for call, case, dtypes, message in outcome.refused
                ],
                "unchecked": outcome.unchecked,
            }
        )
        return made

    def to_frame(self) -> "pd.DataFrame":
        """Return one row a call and dtype: whether the answer is right, and of a refusal its message."""
        import pandas as pd

        rows = [
            (row.call, dtype, answer, row.deterministic, message)
            for row in self.outcome.rows
            for answer, messages in _answers(row).items()
            for dtype, message in messages.items()
        ]
        return pd.DataFrame(rows, columns=["call", "dtype", "answer", "deterministic", "message"])

    def __rich__(self) -> Screen:
        """Return what is wrong, what is right, how fast it is, the order of sums, and what is refused."""
        outcome = self.outcome
        ran = f"{outcome.world_size} ranks, {outcome.backend} on {outcome.device}"
        return Screen(
            headline=f"{outcome.name}: {_HEADLINES[outcome.verdict]} ({ran})",
            style=STYLES[outcome.verdict],
            sections=(
                Section(title="faults", rows=tuple(_faults(outcome))),
                _calls_table(outcome),
                _bandwidths(outcome),
                Section(title="order of sums", rows=tuple(_orders(outcome))),
                Section(title="left out of the verdict", rows=tuple(_outside(outcome))),
            ),
        )


def probes_table(probes: dict[str, str]) -> RichTable:
    """Return one row a probe: its name and what it says of itself."""
    table = RichTable("probe", "what it probes", box=None, pad_edge=False)
    for name, text in probes.items():
        table.add_row(Text(name), Text(text))
    return table


def _answers(row: summary.Row) -> dict[str, Mapping[str, str]]:
    """Return the dtypes by what came of them, each with the backend's message."""
    return {
        "right": dict.fromkeys(row.right, ""),
        "wrong": dict.fromkeys(row.wrong, ""),
        "refused": row.refused,
    }


def _faults(outcome: ProbeOutcome) -> Iterator[Row]:
    for problem in outcome.problems:
        if not problem.hazard:
            yield Row(label="wrong", text=f"{problem.summary}. {_with(problem)}")
    for call in outcome.unchecked:
        yield Row(label="unchecked", text=f"{call}: refused for every type")


def _calls_table(outcome: ProbeOutcome) -> Table:
    names = {True: "yes", False: "no", None: ""}
    return Table(
        title="answers",
        columns=(
            Column(name="call", kind=Kind.NAME),
            Column(name="right in"),
            Column(name="wrong in"),
            Column(name="deterministic"),
        ),
        rows=tuple(
            (row.call, _types(row.right), _types(row.wrong), names[row.deterministic]) for row in outcome.rows
        ),
    )


def _bandwidths(outcome: ProbeOutcome) -> Table:
    rows = [row for row in outcome.rows if row.bandwidths]
    sizes = sorted({size for row in rows for size in row.bandwidths})
    return Table(
        title="bandwidth",
        columns=(
            Column(name="GB/s on the bus", kind=Kind.NAME),
            *(Column(name=_size(size), kind=Kind.NUMBER) for size in sizes),
        ),
        rows=tuple((row.call, *(_speed(row, size, outcome.world_size) for size in sizes)) for row in rows),
    )


def _speed(row: summary.Row, size_bytes: int, world_size: int) -> str:
    if size_bytes not in row.bandwidths:
        return ""
    return f"{bus_bytes(row.call, size_bytes, world_size) / row.bandwidths[size_bytes] / 1e9:.2g}"


def _orders(outcome: ProbeOutcome) -> Iterator[Row]:
    for row in outcome.rows:
        alike: dict[str, list[tuple[str, int]]] = {}
        for (dtype, size), (order, formats) in row.orders.items():
            alike.setdefault(f"{order.text}; {_rounding(dtype, formats)}", []).append((dtype, size))
        for text, found in alike.items():
            dtypes = tuple(dict.fromkeys(dtype for dtype, _ in found))
            sizes = sorted({size for _, size in found})
            at = "" if len(alike) == 1 else f", {' and '.join(map(str, sizes))} elements"
            yield Row(text=f"{row.call} adds: {text} ({_types(dtypes)}{at})")


def _rounding(dtype: str, formats: tuple[str, ...]) -> str:
    if not formats:
        return "rounding in no way that was tried"
    if dtype not in formats:
        return f"in {' or '.join(formats)}, and rounds once"
    return "rounds each sum" if len(formats) == 1 else "rounds each sum, or once"


def _outside(outcome: ProbeOutcome) -> Iterator[Row]:
    """Yield what torch promises nothing for, and what the backend refuses."""
    for problem in outcome.problems:
        if problem.hazard:
            yield Row(
                label="hazard",
                text=f"{problem.call}, {problem.case}: silently wrong. torch promises nothing for such "
                "tensors: call .contiguous() first",
            )
    rows = {row.call: row for row in outcome.rows}
    alike: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for call, case, dtypes, message in outcome.refused:
        always = all(dtype in rows[call].refused for dtype in dtypes)
        alike.setdefault((dtypes, message), []).append(call if always else f"{call} ({case})")
    for (dtypes, message), calls in alike.items():
        yield Row(label="refused", text=f"{_types(dtypes)} by {', '.join(dict.fromkeys(calls))}: {message}")


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


def _call_json(row: summary.Row, world_size: int) -> dict[str, Any]:
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
