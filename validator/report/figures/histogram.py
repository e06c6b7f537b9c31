"""The histogram of an edge's signed errors."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from validator.checks.profiles import ULP_EDGES
from validator.report.figures.drawing import BLUE, LEGEND, ORANGE, Figure, rounded

__all__ = ["ulp_histogram"]

_NAMED = (0.5, 1024.0, 2.0, 256.0, 64.0, 1.0, 0.25, 16.0, 0.125)
"""The edges of bins that are written at the axis, those that matter most before others."""
_ROOM = 0.12
"""How far apart they are at least, of the width of the plot."""
_NUMBERS = 8
"""So many powers of ten can be read beside the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bin:
    """Errors that are told by their number.

    Attributes:
        place: its middle along the axis, on which each is 1 wide: 0 is no error.
        name: of the errors.
        width: in ulp; None of no error, and of what is beyond the last edge.
        count: of elements.
    """

    place: float
    name: str
    width: float | None
    count: int

    @property
    def height(self) -> float:
        """Elements per ulp; of a bin without a width, elements."""
        return self.count / (self.width or 1.0)


def ulp_histogram(counts: Sequence[int]) -> Figure:
    """Show the elements per ulp, which bins of any width have alike where errors are spread alike.

    Bins without a width are points, which show elements. Bars and points carry the number of their elements
    as `customdata`, and their errors as `hovertext`.

    Args:
        counts: as of `Profile.ulp_counts`.
    """
    bins = _bins(counts)
    bars = [one for one in bins if one.width is not None]
    points = [one for one in bins if one.width is None]
    traces: list[dict[str, object]] = [
        {
            "type": "bar",
            "showlegend": False,  # the axis says what they are
            **_said(bars),
            "y": rounded(one.height for one in bars),
            "textposition": "none",
            "marker": {"color": BLUE, "line": {"width": 0}},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "elements at 0" + (f", or beyond ±{ULP_EDGES[-1]:g}" if len(points) > 1 else ""),
            **_said(points),
            "y": [one.count or None for one in points],
            "marker": {"color": ORANGE, "symbol": "diamond", "size": 8},
        },
    ]
    return {
        "data": traces,
        "layout": {
            "title": {"text": "signed error"},
            "xaxis": _ulp_axis(bins),
            "yaxis": _height_axis(one.height for one in bins),
            "bargap": 0,
            "showlegend": any(one.count for one in points),
            "legend": {**LEGEND, "x": 1, "xanchor": "right"},
        },
    }


def _bins(counts: Sequence[int]) -> list[_Bin]:
    """Return the bins up to the largest error, as many of one sign as of the other.

    A histogram that is not symmetrical is to look so.
    """
    edges = [f"{edge:g}" for edge in ULP_EDGES]
    names = [f"≤ {edges[0]}", *map(" to ".join, pairwise(edges)), f"≥ {edges[-1]}"]
    widths = [None, *(after - before for before, after in pairwise(ULP_EDGES)), None]
    middle = len(counts) // 2
    names.insert(middle, "0")
    widths.insert(middle, None)
    reach = max([1, *(abs(n - middle) for n, count in enumerate(counts) if count)])
    # What has no width and no elements leaves no gap.
    nearer = 0.0 if counts[middle] else 0.5
    return [
        _Bin(
            place=0.0 if n == middle else n - middle - math.copysign(nearer, n - middle),
            name=names[n],
            width=widths[n],
            count=counts[n],
        )
        for n in range(middle - reach, middle + reach + 1)
    ]


def _said(bins: Iterable[_Bin]) -> dict[str, Any]:
    shown = list(bins)
    return {
        "x": [one.place for one in shown],
        "hovertext": [one.name for one in shown],
        "customdata": [[one.count] for one in shown],  # a list: a number is that of an edge
        "hovertemplate": "%{hovertext} ulp: %{customdata[0]} elements<extra></extra>",
    }


def _ulp_axis(bins: Sequence[_Bin]) -> dict[str, Any]:
    """Return the axis of bins, which names where they meet."""
    end = bins[-1].place + 0.5
    first = next(one.place for one in bins if one.place > 0) - 0.5
    places = {edge: first + n for n, edge in enumerate(edge for edge in ULP_EDGES if edge >= 0)}
    places = {edge: place for edge, place in places.items() if place <= end}
    named: dict[float, str] = {0.0: "0"}
    for edge in _NAMED:
        place = places.get(edge)
        if place is not None and all(abs(place - other) >= _ROOM * 2 * end for other in named):
            named |= {place: f"{edge:g}", -place: f"{-edge:g}"}
    return {
        "title": {"text": "candidate - oracle, ulp"},
        "range": [-end - 0.1, end + 0.1],
        "tickvals": list(named),
        "ticktext": list(named.values()),
        "minor": {
            "tickvals": [sign * place for place in places.values() for sign in (-1, 1)],
            "ticks": "outside",
        },
        "showgrid": False,
        "zeroline": False,
    }


def _height_axis(heights: Iterable[float]) -> dict[str, Any]:
    logs = [math.log10(height) for height in heights if height] or [0.0]
    low = math.floor(min(logs))
    high = max(math.ceil(max(logs)), low + 1)
    numbers = [float(f"1e{n}") for n in range(low, high + 1, 1 + (high - low) // _NUMBERS)]
    return {
        "type": "log",
        "title": {"text": "elements per ulp"},
        "range": [low - 0.3, high + 0.15],  # the least height is one
        "tickvals": numbers,
        "ticktext": [f"{number:g}" for number in numbers],
    }
