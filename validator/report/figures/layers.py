"""How far each layer is from its limits, and which layer a module is of."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from validator.checks.findings import Arm, Judgement, Outcome, Verdict
from validator.checks.judge import GAIN_Z
from validator.checks.profiles import Unit
from validator.report import facts
from validator.report.figures.drawing import Figure, edge_label, label, over_band, told
from validator.report.figures.heat import COLUMNS, OVER, ROWS, limit_scale, named_axis, shade

__all__ = ["LAYER_METRICS", "OUTSIDE", "Place", "layers_figure", "layers_of", "place_of"]

OUTSIDE = "outside"
"""Where modules are that are in no layer: embeddings, the last norm, the head, the model itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a module is.

    Attributes:
        layer: fqn of its layer, which ends in the first number of its path, or `OUTSIDE`.
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


_GAIN, _OUTSIDE = f"|z| of the gain / {GAIN_Z:g}", "elements outside, %"

LAYER_METRICS: Mapping[str, Callable[[Judgement], float | None]] = {
    "largest error / band": over_band,
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
            at = (name if metric is None else place.inside, place.layer)
            cell = (_over_limit(name, judgement, value), value, n)
            worst[at] = max(worst.get(at, cell), cell)
    rows = {row: row or "(the layer itself)" for row, _ in worst}
    grid = [[worst.get((row, layer)) for layer in columns] for row in rows]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": list(range(len(columns))),
                "y": list(range(len(rows))),
                "z": [[None if cell is None else shade(cell[0]) for cell in line] for line in grid],
                "customdata": [[None if cell is None else cell[-1] for cell in line] for line in grid],
                "text": [
                    [
                        f"layer {label(column)}, {label(row)}"
                        + ("" if cell is None else _about(outcome, *cell[1:]))
                        for column, cell in zip(columns.values(), line, strict=True)
                    ]
                    for row, line in zip(rows.values(), grid, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                **limit_scale("over its limit" if metric is None else label(metric)),
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": "layer"}, **named_axis(list(columns.values()), COLUMNS)},
            "yaxis": {"autorange": "reversed", "automargin": True, **named_axis(list(rows.values()), ROWS)},
        },
    }


def place_of(module: str) -> Place:
    """Return where a module is."""
    layer = facts.layer_of(module)
    if layer is None:
        return Place(layer=OUTSIDE, inside=module)
    return Place(layer=layer, inside=module.removeprefix(layer).removeprefix("."))


def layers_of(modules: Iterable[str]) -> dict[str, str]:
    """Return short names of layers by fqn, in the order of their first modules, what is outside last.

    Where all layers are of one stack its name is left out.
    """
    found = dict.fromkeys(place_of(module).layer for module in modules)
    is_outside = found.pop(OUTSIDE, "") is None
    stacks = {layer.rpartition(".")[0] for layer in found}
    names = {layer: layer.rpartition(".")[2] if len(stacks) == 1 else layer for layer in found}
    return names | ({OUTSIDE: OUTSIDE} if is_outside else {})


def _over_limit(metric: str, judgement: Judgement, value: float) -> float:
    """Return what a cell's colour is of, whose scale has the limit at 1."""
    if metric == _GAIN:
        # Below its floor a gain is healthy however clear it is, and a slice's may be clear alone.
        return max(value, OVER) if judgement.arm is Arm.GAIN else min(value, 1.0)
    if metric == _OUTSIDE:
        return max(value, OVER) if value else 0.0
    return value


def _about(outcome: Outcome, value: float, index: int) -> str:
    return f"<br>{told([value])[0]}<br>{label(edge_label(outcome.judgements[index]))}"
