"""How far each layer is from its limits, and which layer a module is of."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from validator import digits
from validator.checks.findings import Arm, Judgement, Outcome, Verdict
from validator.checks.judge import GAIN_Z
from validator.checks.profiles import Unit
from validator.report import facts, phrases
from validator.report.figures.drawing import Figure, edge_label, label, over_band, told
from validator.report.figures.heat import (
    COLUMNS,
    LIMIT_TICKS,
    OVER,
    RATIO_TICKS,
    ROWS,
    WORD_TICKS,
    height_of,
    limit_scale,
    named_axis,
    shade,
    share_scale,
    share_shade,
)

__all__ = ["LAYER_METRICS", "NO_LAYER", "Place", "layer_words", "layers_figure", "layers_of", "place_of"]

NO_LAYER = "no layer"
"""Where modules are that are in no layer: embeddings, the last norm, the head, the model itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a module is.

    Attributes:
        layer: fqn of its layer, which ends in the first number of its path, or `NO_LAYER`.
        inside: its name in that layer; `""` for the layer itself.
    """

    layer: str
    inside: str


def _rms(judgement: Judgement) -> float | None:
    profile = judgement.profile
    return profile.rms if profile is not None and profile.unit is Unit.BAND else None


def _gain_z(judgement: Judgement) -> float | None:
    return None if judgement.evidence.z is None else abs(judgement.evidence.z) / GAIN_Z


def _percent_outside(judgement: Judgement) -> float | None:
    evidence = judgement.evidence
    return 100 * (evidence.outside or 0) / evidence.elements if evidence.elements else None


_LARGEST, _GAIN, _OUTSIDE = "largest error / band", f"|z| of the gain / {GAIN_Z:g}", "elements outside, %"

LAYER_METRICS: Mapping[str, Callable[[Judgement], float | None]] = {
    _LARGEST: over_band,
    "rms error / band": _rms,
    _GAIN: _gain_z,
    _OUTSIDE: _percent_outside,
}
"""What is told of each layer."""


def layers_figure(outcome: Outcome, metric: str | None = None) -> Figure:
    """Show as a heat map how far each layer is from its limits.

    Args:
        outcome: of a run.
        metric: one of `LAYER_METRICS`, which then is told of each module in a layer; None for all metrics,
            each of the worst module.
    """
    judged = [(n, j) for n, j in enumerate(outcome.judgements) if j.verdict is not Verdict.UNCHECKED]
    columns = layers_of(j.module for _, j in judged)
    worst: dict[tuple[str, str], tuple[float, float, int]] = {}
    for name in LAYER_METRICS if metric is None else (metric,):
        for n, judgement in judged:
            value = LAYER_METRICS[name](judgement)
            if value is None or math.isnan(value):
                continue
            place = place_of(judgement.module)
            at = (name if metric is None else _row_of(place), place.layer)
            cell = (_shade(name, judgement, value), value, n)
            worst[at] = max(worst.get(at, cell), cell)
    rows = _rows_of(worst)
    grid = [[worst.get((row, layer)) for layer in columns] for row in rows]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": list(range(len(columns))),
                "y": list(range(len(rows))),
                "z": [[None if cell is None else cell[0] for cell in line] for line in grid],
                "customdata": [[None if cell is None else cell[-1] for cell in line] for line in grid],
                "text": [
                    [
                        f"{label(layer_words(column))}, {label(row)}"
                        + ("" if cell is None else _about(outcome, metric or row, *cell[1:]))
                        for column, cell in zip(columns.values(), line, strict=True)
                    ]
                    for row, line in zip(rows, grid, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                **_scale(metric),
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": "layer"}, **named_axis(list(columns.values()), COLUMNS)},
            "yaxis": {"autorange": "reversed", "automargin": True, **named_axis(rows, ROWS)},
            **height_of(len(rows)),
        },
    }


def place_of(module: str) -> Place:
    """Return where a module is."""
    layer = facts.layer_of(module)
    if layer is None:
        return Place(layer=NO_LAYER, inside=module)
    return Place(layer=layer, inside=module.removeprefix(layer).removeprefix("."))


def layers_of(modules: Iterable[str]) -> dict[str, str]:
    """Return short names of layers by fqn, in the order of their first modules, and last what is in none.

    Where all layers are of one stack its name is left out.
    """
    found = dict.fromkeys(place_of(module).layer for module in modules)
    has_others = found.pop(NO_LAYER, "") is None
    stacks = {layer.rpartition(".")[0] for layer in found}
    names = {layer: layer.rpartition(".")[2] if len(stacks) == 1 else layer for layer in found}
    return names | ({NO_LAYER: NO_LAYER} if has_others else {})


def layer_words(name: str) -> str:
    """Return `layer 3`, or what modules are in that are in no layer; of a short name."""
    return name if name == NO_LAYER else f"layer {name}"


def _row_of(place: Place) -> str:
    itself = phrases.module_name("") if place.layer == NO_LAYER else "(the layer itself)"
    return place.inside or itself


def _rows_of(cells: Iterable[tuple[str, str]]) -> list[str]:
    """Return the rows of cells, each a row and a layer: in the order of the cells, those of no layer last."""
    is_in: dict[str, bool] = {}
    for row, layer in cells:
        is_in[row] = is_in.get(row, False) or layer != NO_LAYER
    return sorted(is_in, key=lambda row: not is_in[row])


def _scale(metric: str | None) -> dict[str, Any]:
    if metric is None:
        return limit_scale("what rounding explains", WORD_TICKS)
    if metric == _OUTSIDE:
        return share_scale(label(metric))
    return limit_scale(label(metric), LIMIT_TICKS if metric == _LARGEST else RATIO_TICKS)


def _shade(metric: str, judgement: Judgement, value: float) -> float:
    """Return where a cell is on the colour scale: past its middle where rounding can't explain the value."""
    if metric == _OUTSIDE:
        return share_shade(value)
    if metric == _GAIN:
        # Below its floor a gain is healthy however clear it is, and a slice's may be clear alone.
        value = max(value, OVER) if judgement.arm is Arm.GAIN else min(value, 1.0)
    return shade(value) or 0.0


def _about(outcome: Outcome, metric: str, value: float, index: int) -> str:
    (text,) = told([value], digits.number if metric == _OUTSIDE else digits.ratio)
    return f"<br>{text}<br>{label(edge_label(outcome.judgements[index]))}"
