"""The figures of one judged edge, from its profile: where its error lies, and how large it is."""

import math
from collections.abc import Sequence
from itertools import pairwise

from validator.checks.profiles import ULP_EDGES, Line, Profile, Sample, Unit
from validator.report.figures.drawing import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    ErrorAxis,
    Figure,
    error_title,
    limit_line,
    rounded,
    told,
)

__all__ = ["edge_figures"]

_DIGITS = 5
_SPARSE = 64
"""Up to so many places are shown as single points, more as lines."""


def edge_figures(profile: Profile, *, bins: int = 256, sampled: int = 400) -> dict[str, Figure]:
    """Return the figures of an edge by name: `along token`, `along channel`, ..., `ulp` and `values`.

    Args:
        profile: of the edge.
        bins: how many places of a dim are told apart at most.
        sampled: how many single elements are shown at most, the worst among them.
    """
    lines = [(line, _binned(line, bins)) for line in profile.lines]
    figures = {f"along {line.axis}": _along(binned, profile.unit) for line, binned in reversed(lines)}
    if profile.ulp_counts:
        figures["ulp"] = _histogram(profile.ulp_counts)
    figures["values"] = _values(profile.sample, profile.unit, sampled)
    return figures


def _along(line: Line, unit: Unit) -> Figure:
    axis = ErrorAxis(line.largest, error_title(unit))
    width = line.starts[1] - line.starts[0] if line.dim is not None and len(line.starts) > 1 else 1
    place, ends = f"{line.axis} %{{x}}", {}
    if width > 1:
        place = f"{place} to %{{text}}"
        ends = {"text": [min(start + width, line.size) - 1 for start in line.starts]}
    is_sparse = len(line.starts) <= _SPARSE
    shown: list[dict[str, object]] = []
    for name, values, colour in (("largest", line.largest, BLUE), ("rms", line.rms, GREY)):
        shown.append(
            {
                # Not bars: on a logarithmic axis they have no foot to stand on.
                "type": "scatter",
                "mode": "markers" if is_sparse else "lines",
                "name": name,
                "x": list(line.starts),
                "y": axis.place(values),
                **ends,
                "hovertemplate": axis.hover(values, place),
                "marker": {
                    "color": colour,
                    "size": 6,
                    "symbol": "circle" if name == "largest" else "circle-open",
                },
                "line": {"color": colour, "width": 1.5, "dash": "solid" if name == "largest" else "dot"},
            }
        )
    layout = {
        "title": {"text": f"per {line.axis}"},
        "xaxis": {"title": {"text": line.axis}, **({"dtick": 1} if line.size <= 16 else {})},
        "yaxis": axis.layout(),
        "shapes": [limit_line()] if unit is Unit.BAND else [],
        "legend": {"orientation": "h", "y": 1.15, "x": 1, "xanchor": "right"},
    }
    return {"data": shown, "layout": layout}


def _histogram(counts: Sequence[int]) -> Figure:
    edges = [f"{edge:g}" for edge in ULP_EDGES]
    names = [f"≤ {edges[0]}", *map(" to ".join, pairwise(edges)), f"≥ {edges[-1]}"]
    middle = len(counts) // 2
    names.insert(middle, "0")
    reach = max([1, *(abs(n - middle) for n, count in enumerate(counts) if count)])
    # As far on one side as on the other: a histogram that is not symmetrical is to look so.
    shown = range(middle - reach, middle + reach + 1)
    return {
        "data": [
            {
                "type": "bar",
                "x": [names[n] for n in shown],
                "y": [counts[n] for n in shown],
                "marker": {"color": BLUE},
                "hovertemplate": "%{x} ulp: %{y} elements<extra></extra>",
            }
        ],
        "layout": {
            "title": {"text": "signed error"},
            "xaxis": {"title": {"text": "candidate - oracle, ulp"}, "type": "category"},
            "yaxis": {"title": {"text": "elements"}},
            "bargap": 0.05,
        },
    }


def _values(sample: Sample, unit: Unit, sampled: int) -> Figure:
    first = max(0, len(sample.error) - sampled)  # the worst ones are the last
    oracle, candidate, error = sample.oracle[first:], sample.candidate[first:], sample.error[first:]
    limit = 1.0 if unit is Unit.BAND else 0.0
    traces: list[dict[str, object]] = [
        {
            "type": "histogram2dcontour",
            "x": rounded(oracle, _DIGITS),
            "y": rounded(candidate, _DIGITS),
            "ncontours": 8,
            "contours": {"coloring": "lines"},
            "colorscale": [[0, GREY], [1, GREY]],
            "line": {"width": 0.5},
            "showscale": False,
            "hoverinfo": "skip",
            "name": "density",
            "showlegend": False,
        }
    ]
    for name, is_in, colour, symbol in (
        ("within", True, BLUE, "circle"),
        ("outside", False, VERMILLION, "x"),
    ):
        shown = [n for n, value in enumerate(error) if (value <= limit) == is_in]
        if shown:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"{name} ({len(shown)})",
                    "x": rounded((oracle[n] for n in shown), _DIGITS),
                    "y": rounded((candidate[n] for n in shown), _DIGITS),
                    "text": told([error[n] for n in shown]),
                    "hovertemplate": f"oracle %{{x}}, candidate %{{y}}<br>{error_title(unit)} %{{text}}",
                    "marker": {"color": colour, "symbol": symbol, "size": 5, "opacity": 0.6},
                }
            )
    finite = [value for value in oracle if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    diagonal = {"type": "line", "x0": low, "y0": low, "x1": high, "y1": high}
    return {
        "data": traces,
        "layout": {
            "title": {"text": f"{len(oracle)} elements"},
            "xaxis": {"title": {"text": "oracle"}},
            "yaxis": {"title": {"text": "candidate"}},
            "shapes": [{**diagonal, "line": {"color": ORANGE, "width": 1, "dash": "dot"}, "layer": "below"}],
            "legend": {"orientation": "h", "y": 1.15, "x": 1, "xanchor": "right"},
        },
    }


def _binned(line: Line, bins: int) -> Line:
    """Put neighbouring bins together until there are few enough."""
    if len(line.starts) <= bins:
        return line
    width = math.ceil(len(line.starts) / bins)
    firsts = range(0, len(line.starts), width)

    def known(values: Sequence[float], first: int) -> list[float]:
        return [value for value in values[first : first + width] if not math.isnan(value)]

    squares = [[value**2 for value in known(line.rms, first)] for first in firsts]
    return Line(
        axis=line.axis,
        dim=line.dim,
        size=line.size,
        starts=tuple(line.starts[first] for first in firsts),
        largest=tuple(max(known(line.largest, first), default=math.nan) for first in firsts),
        rms=tuple(math.sqrt(sum(held) / len(held)) if held else math.nan for held in squares),
    )
