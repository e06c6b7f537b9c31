"""The figures of a page as tables: the same values for a keyboard, a screen reader, and without scripts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from validator.checks.findings import Outcome, Verdict
from validator.checks.profiles import Unit
from validator.report.figures.drawing import Figure, edge_label, error_title, over_band, told
from validator.report.figures.layers import LAYER_METRICS, layers_of
from validator.report.figures.positions import token_errors

__all__ = ["Cell", "ValueTable", "value_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A text, and the position of the edge that it is of, or None."""

    text: str
    edge: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTable:
    """Names of the columns, and rows of as many cells; the first cell of each is its head."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def value_tables(outcome: Outcome, figures: Mapping[str, Figure | None]) -> dict[str, ValueTable]:
    """Return what the figures of the whole run show, by their names; nothing of one that shows nothing.

    Args:
        outcome: of a run.
        figures: of `page_data`.
    """
    tables = {
        "edges": _edges(outcome),
        "layers": _layers(outcome, figures["layers"]),
        "kl": _kl(figures["kl"]),
        "positions": _positions(outcome),
    }
    return {name: table for name, table in tables.items() if table is not None and table.rows}


def _edges(outcome: Outcome) -> ValueTable:
    """A row for each judged edge, in execution order."""
    judged = [(n, j) for n, j in enumerate(outcome.judgements) if j.verdict is not Verdict.UNCHECKED]
    errors = told([over_band(judgement) for _, judgement in judged])
    return ValueTable(
        columns=("edge", "verdict", error_title(Unit.BAND)),
        rows=tuple(
            (Cell(text=edge_label(j), edge=n), Cell(text=j.verdict.replace("_", " ")), Cell(text=error))
            for (n, j), error in zip(judged, errors, strict=True)
        ),
    )


def _layers(outcome: Outcome, figure: Figure | None) -> ValueTable | None:
    """A row for each layer, a column for each metric; the figure knows the worst edge of each."""
    if figure is None:
        return None
    judged = [judgement for judgement in outcome.judgements if judgement.verdict is not Verdict.UNCHECKED]
    metrics = [
        name
        for name, metric in LAYER_METRICS.items()
        if any(not math.isnan(value) for j in judged if (value := metric(j)) is not None)
    ]
    if not metrics:
        return None
    (heat,) = figure["data"]
    worst = zip(
        layers_of(j.module for j in judged).values(), zip(*heat["customdata"], strict=True), strict=True
    )

    def cell(metric: str, edge: int | None) -> Cell:
        value = None if edge is None else LAYER_METRICS[metric](outcome.judgements[edge])
        return Cell(text=told([math.nan if value is None else value])[0], edge=edge)

    return ValueTable(
        columns=("layer", *metrics),
        rows=tuple(
            (Cell(text=layer), *(cell(*each) for each in zip(metrics, edges, strict=True)))
            for layer, edges in worst
        ),
    )


def _kl(figure: Figure | None) -> ValueTable | None:
    """A row for each token, a column for each sequence."""
    if figure is None:
        return None
    lines = [dict(zip(line["x"], line["text"], strict=True)) for line in figure["data"]]
    return ValueTable(
        columns=("token", *(f"{line['name']}, nats" for line in figure["data"])),
        rows=tuple(
            (Cell(text=str(token)), *(Cell(text=line.get(token, "")) for line in lines))
            for token in sorted({token for line in lines for token in line})
        ),
    )


def _positions(outcome: Outcome) -> ValueTable | None:
    """A row for each token, of which there may be many, and a column for each layer."""
    found = token_errors(outcome)
    if found is None:
        return None
    return ValueTable(
        columns=("token", *(f"layer {name}" for name in found.layers)),
        rows=tuple(
            (Cell(text=token), *(Cell(text=error) for error in told(errors)))
            for token, errors in zip(found.tokens, zip(*found.errors, strict=True), strict=True)
        ),
    )
