"""Results of several runs side by side: the same port over time, on more ranks, or compiled."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from validator import digits
from validator.checks.findings import Verdict
from validator.errors import UsageError
from validator.report import phrases, run_changes
from validator.report.figures.drawing import Figure
from validator.report.figures.runs import runs_figure
from validator.report.json_report import SCHEMA_VERSION, plain
from validator.report.result import EXIT_CODES
from validator.report.screen import Column, Kind, Row, Screen, Section, Table
from validator.report.shown import Shown
from validator.report.stored_runs import EdgeName, StoredRun, read_run
from validator.report.text import STYLES

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

__all__ = ["SideBySide", "read_runs"]

_SHOWN = 20
_WIDTH = 120
_ABSENT = "-"


def read_runs(paths: Sequence[Path]) -> "SideBySide":
    """Read results, in the order in which they are to be compared.

    Raises:
        UsageError: a file holds no result of `check`, or is given twice.
    """
    twice = next((path for i, path in enumerate(paths) if path.resolve() in _resolved(paths[:i])), None)
    if twice is not None:
        raise UsageError(f"{twice} is given twice; name each result once")
    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    return SideBySide(tuple(read_run(path, name=name) for path, name in zip(paths, names, strict=True)))


@dataclasses.dataclass(frozen=True, slots=True)
class SideBySide(Shown):
    """The answer to "what changed from run to run?"."""

    text_width: ClassVar[int] = _WIDTH

    runs: tuple[StoredRun, ...]

    @property
    def exit_code(self) -> int:
        """That of the last run."""
        return EXIT_CODES[self.runs[-1].verdict]

    def figure(self) -> "go.Figure":
        """Return the error of each edge over its band, run by run, as a plotly figure."""
        import plotly.graph_objects as go

        return go.Figure(runs_figure(self.runs))

    def figures(self) -> dict[str, Figure]:
        """Return the same for the page."""
        return {
            "Error over the band, edge by edge. Above 1 rounding can't explain it.": runs_figure(self.runs)
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return one row an edge of a run, in the order of judging."""
        import pandas as pd

        rows = [
            {"run": run.name, **dataclasses.asdict(name), **dataclasses.asdict(edge)}
            for run in self.runs
            for name, edge in run.edges.items()
        ]
        frame = pd.DataFrame(
            rows, columns=["run", "module", "check", "into", "path", "call", "verdict", "max_over_band"]
        )
        frame[["check", "verdict"]] = frame[["check", "verdict"]].map(str)
        return frame

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1, of the kind `side_by_side`."""
        kept = ("verdict", "first_divergence", "distribution")
        document: dict[str, Any] = plain(
            {
                "schema": SCHEMA_VERSION,
                "runs": [{"name": run.name, **{key: run.document[key] for key in kept}} for run in self.runs],
                "changes": [_change_json(before, after) for before, after in pairwise(self.runs)],
                "findings": [self._row_json(name) for name in run_changes.found_anywhere(self.runs)],
                "moved": [self._row_json(name) for name in run_changes.moved(self.runs)],
                "differences": run_changes.differences(self.runs),
            }
        )
        return document

    def __rich__(self) -> Screen:
        """Return what a terminal shows."""
        moved = run_changes.moved(self.runs)
        sections = (
            _runs_table(self.runs),
            Section(title="from run to run", rows=tuple(_changes(self.runs))),
            self._edges("findings, error over the band", run_changes.found_anywhere(self.runs)),
            self._edges("no finding, but the error over the band moved more than chance moves it", moved),
            Section(rows=tuple(_limits(self.runs, moved))),
            self._differences(),
        )
        return Screen(headline=_headline(self.runs), style=STYLES[self.runs[-1].verdict], sections=sections)

    def _row_json(self, name: EdgeName) -> dict[str, Any]:
        return {
            "edge": dataclasses.asdict(name),
            "verdicts": [run.edges[name].verdict if name in run.edges else None for run in self.runs],
            "max_over_band": run_changes.errors(self.runs, name),
        }

    def _edges(self, title: str, names: Sequence[EdgeName]) -> Table:
        more = "" if len(names) <= _SHOWN else f" ({_SHOWN} of {len(names)}: --json FILE has all)"
        return Table(
            title=f"{title}{more}",
            columns=(
                Column(name="edge", kind=Kind.NAME),
                *(Column(name=run.name) for run in self.runs),
            ),
            rows=tuple((str(name), *(_cell(run, name) for run in self.runs)) for name in names[:_SHOWN]),
        )

    def _differences(self) -> Table:
        return Table(
            title="metadata that differ",
            columns=(Column(name="name", kind=Kind.NAME), *(Column(name=run.name) for run in self.runs)),
            rows=tuple(
                (name, *(_ABSENT if value is None else value for value in values))
                for name, values in run_changes.differences(self.runs).items()
            ),
        )


def _resolved(paths: Sequence[Path]) -> set[Path]:
    return {path.resolve() for path in paths}


def _change_json(before: StoredRun, after: StoredRun) -> dict[str, Any]:
    appeared, gone = run_changes.findings_changed(before, after)
    return {
        "from": before.name,
        "to": after.name,
        "verdicts": [before.verdict, after.verdict],
        "appeared": [dataclasses.asdict(name) for name in appeared],
        "gone": [dataclasses.asdict(name) for name in gone],
    }


def _headline(runs: Sequence[StoredRun]) -> str:
    if len(runs) == 1:
        return f"{runs[0].name}: {_words(runs[0].verdict)}"
    verdicts = list(dict.fromkeys(run.verdict for run in runs))
    if len(verdicts) == 1:
        return f"{len(runs)} runs: all {_words(verdicts[0])}"
    return f"{len(runs)} runs: {', then '.join(f'{_words(run.verdict)} ({run.name})' for run in runs)}"


def _words(verdict: Verdict) -> str:
    return verdict.replace("_", " ")


def _runs_table(runs: Sequence[StoredRun]) -> Table:
    return Table(
        columns=(
            Column(name="run", kind=Kind.NAME),
            Column(name="verdict"),
            Column(name="findings", kind=Kind.NUMBER),
            Column(name="first divergence", kind=Kind.NAME),
            Column(name="KL mean", kind=Kind.NUMBER),
            Column(name="top-1", kind=Kind.NUMBER),
        ),
        rows=tuple(
            (run.name, _words(run.verdict), str(len(run.findings)), _first(run), *_distribution(run))
            for run in runs
        ),
    )


def _first(run: StoredRun) -> str:
    found = (name for name in run.findings if run.edges[name].verdict is Verdict.DIVERGENT)
    first = next(found, None)
    return "" if first is None else str(first)


def _distribution(run: StoredRun) -> tuple[str, str]:
    return (
        "" if run.kl_mean is None else digits.number(run.kl_mean),
        "" if run.top1 is None else digits.percent(run.top1),
    )


def _changes(runs: Sequence[StoredRun]) -> Iterator[Row]:
    for before, after in pairwise(runs):
        words = []
        if before.verdict is not after.verdict:
            words.append(f"{_words(after.verdict)}, was {_words(before.verdict)}")
        for names, what in _findings_changed(before, after):
            if names:
                shown = phrases.listing([str(name) for name in names], 3)
                words.append(f"{phrases.count(len(names), 'finding')} {what}: {shown}")
        yield Row(label=f"{before.name} to {after.name}", text="; ".join(words) or "the same findings")


def _findings_changed(before: StoredRun, after: StoredRun) -> Iterator[tuple[list[EdgeName], str]]:
    """Yield findings that one run alone has, and what to call them: apart where it alone judged the edge."""
    appeared, gone = run_changes.findings_changed(before, after)
    new, first_judged = run_changes.split_judged(before, appeared)
    yield new, "new"
    yield first_judged, "where nothing was judged before"
    mended, unjudged = run_changes.split_judged(after, gone)
    yield mended, "gone"
    yield unjudged, "no longer judged"


def _limits(runs: Sequence[StoredRun], moved: Sequence[EdgeName]) -> Iterator[Row]:
    """Yield what a reader must know of the edges that moved, and of those that did not."""
    if moved:
        yield Row(
            text="of results of the same arithmetic, whose elements err independently of each other, at most "
            f"{digits.percent(run_changes.ALPHA)} show such an edge"
        )
    count = run_changes.uncounted(runs)
    if count:
        yield Row(
            text=f"{phrases.count(count, 'edge')} of results that older versions wrote have no number of "
            "elements: of them a move is told only where an error is not finite. Write them again with "
            "`validator check --json`"
        )


def _cell(run: StoredRun, name: EdgeName) -> str:
    edge = run.edges.get(name)
    if edge is None:
        return "not judged"
    error = "" if edge.max_over_band is None else digits.ratio(edge.max_over_band)
    return error if edge.verdict is Verdict.ALIGNED and error else f"{error} {_words(edge.verdict)}".strip()
