"""The figure of several runs: the error of each edge over its band, run by run."""

import math
from collections.abc import Sequence

from validator.checks.findings import Verdict
from validator.checks.profiles import Unit
from validator.report.figures.drawing import (
    LEGEND,
    PALETTE,
    VERDICTS,
    ErrorAxis,
    Figure,
    error_title,
    label,
    limit_line,
    told,
)
from validator.report.run_changes import edges_of
from validator.report.stored_runs import RunEdge, StoredRun

__all__ = ["runs_figure"]

_SYMBOLS = (
    "circle-open",
    "x-thin-open",
    "diamond-open",
    "square-open",
    "cross-thin-open",
    "triangle-up-open",
)


def runs_figure(runs: Sequence[StoredRun]) -> Figure:
    """Show the error of each edge in each run, edges in one order.

    A sign of its verdict stands around each finding: those of a gain have errors below 1.
    """
    edges = {name: place for place, name in enumerate(edges_of(runs))}
    errors = [{name: _error(edge) for name, edge in run.edges.items()} for run in runs]
    axis = ErrorAxis((error for run in errors for error in run.values()), error_title(Unit.BAND))
    traces = []
    for number, (run, found) in enumerate(zip(runs, errors, strict=True)):
        turn, colour = divmod(number, len(PALETTE))  # the next turn has the same colours with other symbols
        symbol = _SYMBOLS[(colour + turn) % len(_SYMBOLS)]
        values = list(found.values())
        words = zip(found.items(), told(values), strict=True)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(run.name),
                "x": [edges[name] for name in found],
                "y": axis.place(values),
                "text": [
                    f"{label(str(name))}<br>{label(run.name)}: {error}" + _said(run.edges[name])
                    for (name, _), error in words
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"color": PALETTE[colour], "symbol": symbol, "size": 8, "line": {"width": 1.5}},
            }
        )
    for verdict in (Verdict.UNDECLARED_PRECISION, Verdict.DIVERGENT):
        marked = [
            (edges[name], error)
            for run, found in zip(runs, errors, strict=True)
            for name, error in found.items()
            if run.edges[name].verdict is verdict
        ]
        if marked:
            ink, sign = VERDICTS[verdict]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"{verdict.replace('_', ' ')} ({len(marked)})",
                    "x": [place for place, _ in marked],
                    "y": axis.place([error for _, error in marked]),
                    "hoverinfo": "skip",
                    "marker": {
                        "color": ink,
                        "symbol": f"{sign}-open",
                        "size": 18,
                        "line": {"width": 1.5},
                    },
                }
            )
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": "edge, in the order of judging"}, "rangemode": "nonnegative"},
            "yaxis": axis.layout(),
            "shapes": [limit_line()],
            "showlegend": True,
            "legend": LEGEND,
            "hovermode": "closest",
        },
    }


def _said(edge: RunEdge) -> str:
    return "" if edge.verdict is Verdict.ALIGNED else f", {edge.verdict.replace('_', ' ')}"


def _error(edge: RunEdge) -> float:
    return math.nan if edge.max_over_band is None else edge.max_over_band
