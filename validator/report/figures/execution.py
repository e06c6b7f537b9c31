"""The error of each judged edge in execution order, the first divergence marked."""

import math
from typing import Any

from validator.checks.findings import Judgement, Outcome, Verdict
from validator.checks.profiles import Unit
from validator.report import facts
from validator.report.figures.drawing import (
    LEGEND,
    VERDICTS,
    VERMILLION,
    ErrorAxis,
    Figure,
    edge_label,
    error_title,
    label,
    limit_line,
    over_band,
    told,
)

__all__ = ["edges_figure", "worst_judgement"]

_ROOM = 30.0
"""An error so far over the band leaves room for a text between it and the points at 1."""


def edges_figure(outcome: Outcome) -> Figure:
    """Show the error of each judged edge over its band, in execution order, the first divergence marked.

    Points carry the position of their judgement as `customdata`.
    """
    judged = [(n, j) for n, j in enumerate(outcome.judgements) if j.verdict is not Verdict.UNCHECKED]
    axis = ErrorAxis((over_band(j) for _, j in judged), error_title(Unit.BAND))
    traces = []
    for verdict, (colour, symbol) in VERDICTS.items():
        shown = [(n, j) for n, j in judged if j.verdict is verdict]
        if not shown:
            continue
        values = [over_band(j) for _, j in shown]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{verdict.replace('_', ' ')} ({len(shown)})",
                "x": [n for n, _ in shown],
                "y": axis.place(values),
                "customdata": [n for n, _ in shown],
                "text": [
                    f"{label(edge_label(j))}<br>{of}" for (_, j), of in zip(shown, told(values), strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": colour,
                    "symbol": symbol,
                    "size": 6 if verdict is Verdict.ALIGNED else 10,
                },
            }
        )
    shapes = [limit_line()]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "edge, in execution order"}, "rangemode": "nonnegative"},
        "yaxis": axis.layout(),
        "shapes": shapes,
        "legend": LEGEND,
        "hovermode": "closest",
    }
    first = facts.first_judgement(outcome)
    if first is not None:
        at = outcome.judgements[first]
        (height,) = axis.place([over_band(at)])
        layout["annotations"] = [
            {
                "x": first,
                "y": math.log10(height or 1.0),  # an annotation's place on a logarithmic axis is its exponent
                "text": f"first divergence: {label(edge_label(at))}",
                "showarrow": True,
                "arrowcolor": VERMILLION,
                "ax": 0,
                "ay": 34 if (height or 1.0) > _ROOM else -34,
                "xanchor": "left" if first < len(outcome.judgements) / 2 else "right",
            }
        ]
        shapes += [
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": first,
                "x1": first,
                "line": {"color": VERMILLION, "width": 1},
            }
        ]
    return {"data": traces, "layout": layout}


def worst_judgement(outcome: Outcome) -> int | None:
    """Return the row of the first divergence, else of the edge nearest to its band; None of no edge."""
    first = facts.first_judgement(outcome)
    if first is not None or not outcome.judgements:
        return first
    rows = range(len(outcome.judgements))
    return max(rows, key=lambda row: _nearness(outcome.judgements[row]))


def _nearness(judgement: Judgement) -> tuple[bool, float]:
    error = over_band(judgement)
    return judgement.profile is not None, -1.0 if math.isnan(error) else error
