"""The figures of a page as tables: the same values for a keyboard, a screen reader, and without scripts."""

from collections.abc import Mapping
from dataclasses import dataclass

from validator import digits
from validator.checks.findings import Judgement, Outcome, Verdict
from validator.checks.profiles import Unit
from validator.report.figures.drawing import Figure, edge_label, error_title, over_band, told
from validator.report.figures.layers import LAYER_METRICS, layer_words, layers_of, place_of
from validator.report.figures.positions import position_kl, token_errors

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
        "kl": _kl(outcome),
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
    metrics = figure["layout"]["yaxis"]["ticktext"]  # few enough that all are written
    if not metrics:
        return None
    inside: dict[str, list[Judgement]] = {}
    for judgement in judged:
        inside.setdefault(place_of(judgement.module).layer, []).append(judgement)
    (heat,) = figure["data"]
    layers = layers_of(j.module for j in judged)
    worst = zip(layers.items(), zip(*heat["customdata"], strict=True), strict=True)

    def cell(metric: str, layer: str, edge: int | None) -> Cell:
        # Where no edge is the worst, none has such a value, or each that has one has NaN.
        of = [outcome.judgements[edge]] if edge is not None else inside[layer]
        known = [value for j in of if (value := LAYER_METRICS[metric](j)) is not None]
        return Cell(text=told(known[:1])[0] if known else "", edge=edge)

    return ValueTable(
        columns=("layer", *metrics),
        rows=tuple(
            (Cell(text=name), *(cell(m, layer, edge) for m, edge in zip(metrics, edges, strict=True)))
            for (layer, name), edges in worst
        ),
    )


def _kl(outcome: Outcome) -> ValueTable | None:
    """A row for each token, or bin of tokens, a column for each sequence."""
    found = position_kl(outcome)
    if found is None:
        return None

    def cell(line: Mapping[int, tuple[int, float]], at: int) -> Cell:
        return Cell(text=told([line[at][1]], digits.number)[0] if at in line else "")

    return ValueTable(
        columns=(found.title, *(f"sequence {number}, nats" for number in found.sequences)),
        rows=tuple(
            (Cell(text=token), *(cell(line, at) for line in found.sequences.values()))
            for at, token in found.tokens.items()
        ),
    )


def _positions(outcome: Outcome) -> ValueTable | None:
    """A row for each token, of which there may be many, and a column for each layer."""
    found = token_errors(outcome)
    if found is None:
        return None
    return ValueTable(
        columns=("token", *map(layer_words, found.layers)),
        rows=tuple(
            (Cell(text=token), *(Cell(text=error) for error in told(errors)))
            for token, errors in zip(found.tokens, zip(*found.errors, strict=True), strict=True)
        ),
    )
