"""What recording and checking a baseline return: they show and save themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from validator import digits
from validator.baselines.bits import Bits
from validator.baselines.conditions import Difference
from validator.baselines.figures import FigureVerdict, Judged
from validator.baselines.records import SCHEMA_VERSION, Baseline
from validator.checks.findings import Finding, Verdict
from validator.report import phrases
from validator.report.json_report import plain
from validator.report.pairs import ComparisonResult
from validator.report.result import EXIT_CODES, Result
from validator.testing.records import Ending

__all__ = ["BaselineCheck", "Changed", "Changes", "Recorded"]

_STYLES = {
    Verdict.ALIGNED: "bold green",
    Verdict.DIVERGENT: "bold red",
    Verdict.UNDECLARED_PRECISION: "bold red",
    Verdict.INCONCLUSIVE: "bold magenta",
}
_DIVERGENT = (FigureVerdict.CHANGED, FigureVerdict.MISSING)
_OPEN = (FigureVerdict.UNKNOWN, FigureVerdict.REFUSED)
_JUDGED = (FigureVerdict.SAME, FigureVerdict.EXPLAINED)
_QUIET = (FigureVerdict.SAME, FigureVerdict.NEW)
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineCheck:
    """The answer to "is this run what the baseline was?".

    Attributes:
        baseline: what it was held to.
        differences: what else was otherwise: machine, versions, parallelism, flags.
        comparison: with the stored reference, by its noise; None for figures.
        edges: each module judged by itself; None where that was not asked for.
        bits: with the stored candidate; None where none is stored, or it ran on another number of ranks.
        figures: each, then and now.
        demands_bits: whether a bit that differs from the stored candidate's is a divergence.
        suites: how the suites ended whose figures these are; None where that is not known.
        notes: what a reader must know.
    """

    baseline: Baseline
    differences: tuple[Difference, ...]
    comparison: ComparisonResult | None = None
    edges: Result | None = None
    bits: Bits | None = None
    figures: tuple[Judged, ...] = ()
    demands_bits: bool = False
    suites: Ending | None = None
    notes: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[str, ...]:
        """Tensors whose bits are not those of the stored candidate, in execution order."""
        return () if self.bits is None else self.bits.differing

    @property
    def verdict(self) -> Verdict:
        """Of the whole."""
        kinds = {judged.verdict for judged in self.figures}
        of_run = Verdict.ALIGNED if self.comparison is None else self.comparison.verdict
        has_failed = of_run is Verdict.DIVERGENT or self.suites is Ending.FAILED
        if has_failed or kinds & set(_DIVERGENT) or (self.demands_bits and self.differing):
            return Verdict.DIVERGENT
        by_edge = Verdict.ALIGNED if self.edges is None else self.edges.verdict
        if by_edge in (Verdict.DIVERGENT, Verdict.UNDECLARED_PRECISION):
            return by_edge
        is_open = {by_edge, of_run} != {Verdict.ALIGNED} or next(self._open(), None) is not None
        return Verdict.INCONCLUSIVE if is_open else Verdict.ALIGNED

    @property
    def first(self) -> Finding | None:
        """What is wrong first: by edge where that was judged, for it names the module where it begins."""
        if self.edges is not None and self.edges.findings:
            return self.edges.first_divergence or self.edges.findings[0]
        return None if self.comparison is None else self.comparison.first_divergence

    @property
    def exit_code(self) -> int:
        """0 aligned, 1 divergent or of an undeclared precision, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def summary(self) -> str:
        """One sentence."""
        first = self.first
        if first is not None:
            return f"not what {self.baseline.name} was: {first.summary}"
        if self.suites is Ending.FAILED:
            return f"not what {self.baseline.name} was: {_suites_ended(self.suites)}"
        changed = [judged for judged in self.figures if judged.verdict in _DIVERGENT]
        if changed:
            return f"not what {self.baseline.name} was: {changed[0].name}: {changed[0].why}"
        if self.demands_bits and self.differing:
            return f"not the bits of {self.baseline.name}: {self.differing[0]} differs first"
        if self.verdict is Verdict.INCONCLUSIVE:
            return (
                f"inconclusive against {self.baseline.name}: {next(self._open(), 'not all could be judged')}"
            )
        if self.bits is not None and not self.bits.differing and not self.bits.unknown:
            return f"bit for bit what {self.baseline.name} was"
        return f"what {self.baseline.name} was{self._but_for()}"

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1, of the kind `baseline`."""
        document: dict[str, Any] = plain(
            {
                "schema": SCHEMA_VERSION,
                "verdict": self.verdict,
                "summary": self.summary,
                "baseline": {
                    name: value
                    for name, value in self.baseline.to_json().items()
                    if name not in ("schema", "figures")
                },
                "differences": [
                    {"item": d.item, "name": d.name, "then": d.then, "now": d.now} for d in self.differences
                ],
                "comparison": None if self.comparison is None else self.comparison.to_json(),
                "edges": None if self.edges is None else self.edges.to_json(),
                "bits_differ_in": None if self.bits is None else self.bits.differing,
                "bits_unknown_of": None if self.bits is None else self.bits.unknown,
                "figures": [
                    {
                        "name": judged.name,
                        "verdict": judged.verdict,
                        "then": None if judged.then is None else judged.then.value,
                        "now": None if judged.now is None else judged.now.value,
                        "why": judged.why,
                    }
                    for judged in self.figures
                ],
                "suites": self.suites,
                "notes": self.notes,
            }
        )
        return document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the verdict, what was otherwise, and what moved."""
        yield Text(phrases.printable(self.summary), style=_STYLES[self.verdict])
        yield Text("")
        rows = Table.grid(padding=(0, 2))
        for label, text in self._rows():
            rows.add_row("", Text(label, style="dim"), Text(phrases.printable(text)))
        yield rows

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield (
            "baseline",
            f"{self.baseline.name}, recorded {self.baseline.recorded} by {self.baseline.command}",
        )
        yield from _limited("otherwise", [str(difference) for difference in self.differences])
        if not self.differences:
            yield "otherwise", "nothing: the same machine, versions, parallelism and flags"
        if self.bits is not None:
            compared = phrases.count(self.bits.compared, "tensor")
            if self.differing:
                yield "bits", f"{len(self.differing)} of {compared} differ; first {self.differing[0]}"
                if not self.differences and not self.demands_bits:
                    yield (
                        "note",
                        "all else is the same, so that the port has changed or gives other bits in each run; "
                        "--bitwise makes that a divergence",
                    )
            else:
                yield "bits", f"{compared}, the same"
            yield from _limited("bits", list(self.bits.unknown))
        if self.comparison is not None:
            yield from (("why", why) for why in self.comparison.comparison.why_inconclusive)
        if self.edges is not None:
            outcome = self.edges.outcome
            judged = phrases.count(len(outcome.judgements), "edge")
            yield (
                "edges",
                f"{judged}, each judged by itself: {phrases.count(len(outcome.findings), 'finding')}",
            )
            yield from (("why", why) for why in outcome.why_inconclusive)
        told = [judged for judged in self.figures if judged.verdict not in _QUIET]
        yield from _limited(
            "figure", [f"{j.name} {_value(j.then)} -> {_value(j.now)}: {j.why}" for j in told]
        )
        if self.suites not in (None, Ending.PASSED):
            yield "suites", _suites_ended(self.suites)
        yield from (("note", note) for note in self.notes)

    def _but_for(self) -> str:
        if self.comparison is not None:
            return ", but for what the rounding of both explains"
        kinds = {judged.verdict for judged in self.figures}
        told = "; speed and memory are told, not judged" if FigureVerdict.MEASURED in kinds else ""
        return f"{', but for what standard errors explain' if FigureVerdict.EXPLAINED in kinds else ''}{told}"

    def _open(self) -> Iterator[str]:
        """Yield why an absence of findings does not make it aligned."""
        if self.comparison is not None:
            yield from self.comparison.comparison.why_inconclusive
        if self.edges is not None:
            yield from self.edges.outcome.why_inconclusive
        if self.suites not in (None, Ending.PASSED):
            yield _suites_ended(self.suites)
        yield from (f"{judged.name}: {judged.why}" for judged in self.figures if judged.verdict in _OPEN)
        if self.figures and not any(judged.verdict in _JUDGED for judged in self.figures):
            yield "its figures are of speed and memory: measured, not judged"
        if self.demands_bits and self.bits is None:
            yield next((note for note in self.notes if note.startswith("bits")), "bits were not compared")
        if self.demands_bits and self.bits is not None:
            yield from self.bits.unknown
            if not self.bits.compared:
                yield "no bits were compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """How far the new capture of a side is from the old one."""

    side: str
    comparison: ComparisonResult
    bits: Bits

    def __str__(self) -> str:
        """Return how many tensors changed, and the one that changed most."""
        of = phrases.count(self.bits.compared, "tensor")
        changed = [pair for pair in self.comparison.comparison.pairs if pair.differs]
        alone = f"; {self.bits.unknown[0]}" if self.bits.unknown else ""
        if not self.bits.differing:
            return f"{of}, none changed{alone}"
        text = f"{len(self.bits.differing)} of {of} changed, first {self.bits.differing[0]}"
        if not changed:
            return f"{text}, none by more than the rounding to the coarser format{alone}"
        worst = max(changed, key=lambda pair: pair.metrics.rel_l2)
        return (
            f"{text}; {phrases.module_name(worst.module)} {worst.side} most: relative L2 "
            f"{digits.number(worst.metrics.rel_l2)}{alone}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a new baseline has otherwise than the one that it replaces.

    Attributes:
        differences: of the conditions.
        sides: the old captures and the new ones.
        figures: each, then and now.
        notes: what could not be compared.
    """

    differences: tuple[Difference, ...] = ()
    sides: tuple[Changed, ...] = ()
    figures: tuple[Judged, ...] = ()
    notes: tuple[str, ...] = ()

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield a label and a sentence for each thing that changed."""
        yield from _limited("otherwise", [str(difference) for difference in self.differences])
        yield from ((changed.side, str(changed)) for changed in self.sides)
        moved = [judged for judged in self.figures if judged.verdict is not FigureVerdict.SAME]
        yield from _limited("figure", [f"{j.name} {_value(j.then)} -> {_value(j.now)}" for j in moved])
        yield from (("note", note) for note in self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What recording did.

    Attributes:
        name: of the baseline.
        baseline: what was written, or None where it was refused.
        comparison: of the candidate with the reference, where the candidate was recorded.
        changes: what it has otherwise than the one that it replaced, or None where there was none.
    """

    name: str
    baseline: Baseline | None
    comparison: ComparisonResult | None = None
    changes: Changes | None = None

    @property
    def exit_code(self) -> int:
        """0 written, 1 refused: a divergent run is no baseline."""
        return 0 if self.baseline is not None else 1

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.baseline is None:
            first = None if self.comparison is None else self.comparison.first_divergence
            why = "" if first is None else f": {first.summary}"
            return f"not recorded, a divergent run is no baseline{why}"
        verb = "recorded" if self.changes is None else "replaced"
        return f"{verb} {self.name} in {self.baseline.folder}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what was written and what changed, or why nothing was."""
        style = "bold green" if self.baseline is not None else "bold red"
        yield Text(phrases.printable(self.summary), style=style)
        rows = Table.grid(padding=(0, 2))
        for label, text in self.rows():
            rows.add_row("", Text(label, style="dim"), Text(phrases.printable(text)))
        if rows.row_count:
            yield Text("")
            yield rows

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield a label and a sentence for what was left undecided, and for each thing that changed."""
        if self.comparison is not None:
            yield from (("undecided", why) for why in self.comparison.comparison.why_inconclusive)
        if self.changes is not None:
            yield from self.changes.rows()


def _suites_ended(ending: Ending) -> str:
    return f"the suites that measured these figures ended {ending.words}"


def _limited(label: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    yield from ((label, text) for text in texts[:_SHOWN])
    if len(texts) > _SHOWN:
        yield label, f"and {len(texts) - _SHOWN} more"


def _value(figure: Any) -> str:
    if figure is None:
        return "nothing"
    value = f"{figure.value:.6g}" if isinstance(figure.value, float) else str(figure.value)
    return f"{value} {figure.unit}".rstrip()
