"""What `validator.compare` returns: a comparison of two captures that shows, saves and tabulates itself."""

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from validator import digits
from validator.capturing.noise import Noise
from validator.checks.findings import Finding, Verdict
from validator.comparing.cards import Cards
from validator.comparing.records import Comparison, Pair, Slice
from validator.numerics.metrics import Metrics
from validator.report import phrases
from validator.report.json_report import SCHEMA_VERSION, finding_json, plain
from validator.report.result import EXIT_CODES
from validator.report.screen import Column, Kind, Row, Screen, Section, Table
from validator.report.shown import Shown
from validator.report.text import STYLES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ComparisonResult"]

_SHOWN = 15
_WIDE = 100
"""Columns of a terminal that has room for the worst slices beside the modules' names."""
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
_JUDGED_COLUMNS = ("verdict", "gap", "arm", "max_over_band", "outside")
_SLICE_COLUMNS = ("worst_slice_dim", "worst_slice_meaning", "worst_slice_index", "worst_slice_rel_l2")


@dataclasses.dataclass(frozen=True, slots=True)
class ComparisonResult(Shown):
    """The answer to "how far apart are these two captures?". It prints as one screen of text."""

    text_width: ClassVar[int] = 120

    comparison: Comparison

    @property
    def verdict(self) -> Verdict:
        """Of the whole comparison; `divergent` only where the reference's capture holds noise."""
        return self.comparison.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The tensors that noise can't explain, in execution order, parameters first."""
        return self.comparison.findings

    @property
    def first_divergence(self) -> Finding | None:
        """The first finding, or None. The fault is there, or shortly before and smaller than the noise."""
        return next(iter(self.comparison.findings), None)

    @property
    def exit_code(self) -> int:
        """0 aligned, 1 divergent, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    def to_frame(self) -> "pd.DataFrame":
        """Return one row a tensor, in execution order, parameters first."""
        import pandas as pd

        rows = [
            {name: getattr(pair, name) for name in _PAIR_COLUMNS}
            | {name: getattr(pair.metrics, name) for name in _METRIC_COLUMNS}
            | dict(zip(_SLICE_COLUMNS, _astuple(_worst_slice(pair)), strict=True))
            | dict(zip(_JUDGED_COLUMNS, _judged(pair), strict=True))
            for pair in self.comparison.pairs
        ]
        frame = pd.DataFrame(
            rows, columns=[*_PAIR_COLUMNS, *_METRIC_COLUMNS, *_SLICE_COLUMNS, *_JUDGED_COLUMNS]
        )
        counts = ["rank", "worst_slice_dim", "worst_slice_index", "outside"]
        counts += [name for name in _METRIC_COLUMNS if name.startswith("ulp_steps")]
        return frame.astype(dict.fromkeys(counts, "Int64"))

    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1, of the kind `comparison`."""
        comparison = self.comparison
        document: dict[str, Any] = plain(
            {
                "schema": SCHEMA_VERSION,
                "verdict": comparison.verdict,
                "first_divergence": None
                if self.first_divergence is None
                else finding_json(self.first_divergence),
                "findings": [finding_json(finding) for finding in comparison.findings],
                "reference": comparison.reference,
                "candidate": comparison.candidate,
                "noise": None if comparison.noise is None else _noise_json(comparison.noise),
                "pairs": [_pair_json(pair) for pair in comparison.pairs],
                "cards": None if comparison.cards is None else _cards_json(comparison.cards),
                "why_inconclusive": comparison.why_inconclusive,
                "notes": comparison.notes,
            }
        )
        return document

    def __rich__(self) -> Screen:
        """Return the verdict, the worst pairs, and what else a reader must know."""
        comparison = self.comparison
        differing = sorted((pair for pair in comparison.pairs if pair.differs), key=_badness, reverse=True)
        return Screen(
            headline=_headline(comparison, len(differing)),
            style=STYLES[self.verdict],
            sections=(
                _table(differing[:_SHOWN], is_judged=comparison.noise is not None),
                Section(rows=tuple(_remarks(comparison, differing))),
            ),
        )


def _pair_json(pair: Pair) -> dict[str, Any]:
    metrics = {name: getattr(pair.metrics, name) for name in _METRIC_COLUMNS}
    return {
        **{name: getattr(pair, name) for name in _PAIR_COLUMNS},
        "metrics": {**metrics, "ulp_steps_histogram": pair.metrics.ulp_steps_histogram},
        "slices": [dataclasses.asdict(worst) for worst in pair.slices],
        "ranks": [{"rank": rank, "rel_l2": rel_l2} for rank, rel_l2 in pair.ranks.items()],
        "judged": None if pair.judged is None else dataclasses.asdict(pair.judged),
    }


def _noise_json(noise: Noise) -> dict[str, Any]:
    return {name: getattr(noise, name) for name in ("runs", "recipe", "dtype", "unknown")}


def _cards_json(cards: Cards) -> dict[str, Any]:
    return {**dataclasses.asdict(cards), "summary": cards.summary}


def _headline(comparison: Comparison, differing: int) -> str:
    total = phrases.count(len(comparison.pairs), "tensor")
    if comparison.findings:
        rank = "" if comparison.findings[0].rank is None else f", rank {comparison.findings[0].rank}"
        return f"divergent: first seen at {phrases.edge_name(comparison.findings[0])}{rank}"
    if comparison.verdict is Verdict.ALIGNED and differing and comparison.noise is not None:
        return f"aligned: {total}, explained by the noise in the reference's capture"
    if comparison.verdict is Verdict.ALIGNED:
        return f"aligned: {total}, every element the reference's own, rounded once at most"
    if differing and comparison.noise is not None:
        return f"inconclusive: {differing} of {total} differ, and not all of them could be judged"
    if differing:
        return (
            f"inconclusive: {differing} of {total} differ, and nothing says how far rounding can carry them"
        )
    return f"inconclusive: {total} agree, but not all could be compared"


def _table(pairs: list[Pair], *, is_judged: bool) -> Table:
    figures = ("rel_l2", "max_abs", "of noise" if is_judged else "ulp p99", "ulp max", "differ")
    columns = (
        Column(name="worst first", kind=Kind.NAME),
        Column(name="tensor", kind=Kind.NAME),
        *(Column(name=name, kind=Kind.NUMBER) for name in figures),
        Column(name="worst slice", least_width=_WIDE),
    )
    rows = []
    for pair in pairs:
        metrics = pair.metrics
        cells = (
            phrases.module_name(pair.module),
            _tensor_name(pair),
            _figure(metrics.rel_l2),
            _figure(metrics.max_abs),
            _figure(_judged(pair)[3] if is_judged else metrics.ulp_steps_p99),
            _figure(metrics.ulp_steps_max),
            digits.percent(metrics.mismatched, metrics.elements or 1),
            _slice_name(pair),
        )
        rows.append(cells)
    return Table(columns=columns, rows=tuple(rows))


def _remarks(comparison: Comparison, differing: list[Pair]) -> Iterator[Row]:
    if len(differing) > _SHOWN:
        yield Row(
            label="more",
            text=f"{len(differing) - _SHOWN} more differ: --csv FILE or --json FILE has all of them",
        )
    first = comparison.first_difference
    if comparison.findings:
        yield Row(label="what", text=comparison.findings[0].summary)
    elif first is not None:
        yield Row(
            label="first", text=f"{phrases.module_name(first.module)}, {_tensor_name(first)} differs first"
        )
    if comparison.noise is not None:
        yield Row(label="noise", text=_noise_text(comparison.noise))
    broken = [pair for pair in differing if pair.metrics.class_mismatched]
    if broken:
        yield Row(
            label="class", text=f"NaN or infinity on one side alone in {phrases.count(len(broken), 'tensor')}"
        )
    for why in comparison.why_inconclusive:
        yield Row(label="why", text=why)
    for note in comparison.notes:
        yield Row(label="note", text=note)
    if comparison.cards is not None:
        yield Row(label="cards", text=comparison.cards.summary)
    if differing:
        yield Row(
            label="next", text="validator check TARGET --capture CANDIDATE judges each operator of a capture"
        )


def _noise_text(noise: Noise) -> str:
    dtype = noise.dtype or "the reference's dtype"
    return (
        f"of {noise.runs} stochastic runs in {dtype}, recipe {noise.recipe}: that of all that comes before a "
        "tensor, so a smaller fault passes unseen, and a fault may show later than where it is"
    )


def _tensor_name(pair: Pair) -> str:
    call = f", call {pair.call}" if pair.call else ""
    rank = "" if pair.rank is None else f", rank {pair.rank}"
    path = pair.path.rpartition(".")[2] if pair.side == "parameter" else pair.path
    return (pair.side if path in ("", pair.side) else f"{pair.side} {path}") + call + rank


def _badness(pair: Pair) -> tuple[float, float, int]:
    """Return what pairs are sorted by: how far beyond their noise they are, where that is known."""
    judged, rel_l2 = pair.judged, pair.metrics.rel_l2
    beyond = math.inf if pair.metrics.class_mismatched else 0.0
    if judged is not None:
        evidence = judged.evidence
        beyond = (evidence.max_over_band or 0.0) if evidence is not None else math.inf if judged.arm else 0.0
    return beyond, -1.0 if math.isnan(rel_l2) else rel_l2, pair.metrics.mismatched


def _judged(pair: Pair) -> tuple[Any, ...]:
    judged = pair.judged
    if judged is None:
        return (None,) * len(_JUDGED_COLUMNS)
    names = (None if name is None else str(name) for name in (judged.verdict, judged.gap, judged.arm))
    evidence = judged.evidence
    return (*names, *((None, None) if evidence is None else (evidence.max_over_band, evidence.outside)))


def _worst_slice(pair: Pair) -> Slice | None:
    return max(pair.slices, key=lambda found: found.rel_l2, default=None)


def _slice_name(pair: Pair) -> str:
    worst = _worst_slice(pair)
    if worst is None or not worst.rel_l2:
        return ""
    return f"{worst.meaning or f'dim {worst.dim}'} {worst.index}: {digits.number(worst.rel_l2)}"


def _astuple(worst: Slice | None) -> tuple[Any, ...]:
    return (None,) * len(_SLICE_COLUMNS) if worst is None else dataclasses.astuple(worst)


def _figure(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else digits.number(value)
