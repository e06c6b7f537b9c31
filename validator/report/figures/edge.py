"""The figures of one judged edge, from its profile: where its error lies, and how large it is."""

import math
from dataclasses import replace

from validator.checks.profiles import Line, Profile, Sample, Unit
from validator.report.figures.drawing import (
    BLUE,
    GREY,
    LEGEND,
    ORANGE,
    VERMILLION,
    ErrorAxis,
    Figure,
    error_title,
    limit_line,
    rounded,
    told,
    writer,
)
from validator.report.figures.histogram import ulp_histogram

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
    figures = {f"along {line.axis}": _along(line, profile.unit, bins) for line in reversed(profile.lines)}
    if profile.ulp_counts:
        figures["ulp"] = ulp_histogram(profile.ulp_counts)
    # Each line counts all elements that are judged.
    elements = max((sum(line.counts) for line in profile.lines), default=len(profile.sample.error))
    figures["values"] = _values(profile.sample, profile.unit, sampled, elements)
    return figures


def _along(whole: Line, unit: Unit, bins: int) -> Figure:
    width = math.ceil(len(whole.starts) / bins)
    line, lasts = _binned(whole, width), _lasts(whole, width)
    axis = ErrorAxis((*line.largest, *line.rms), error_title(unit))
    place, ends = f"{line.axis} %{{x}}", {}
    if list(line.starts) != lasts:
        place, ends = f"{place} to %{{text}}", {"text": lasts}
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
                "hovertemplate": axis.hover(values, place, writer(unit)),
                "marker": {
                    "color": colour,
                    "size": 6,
                    "symbol": "circle" if name == "largest" else "circle-open",
                },
                "line": {"color": colour, "width": 1.5, "dash": "solid" if name == "largest" else "dot"},
            }
        )
    is_short = lasts[-1] - line.starts[0] < 16
    layout = {
        "title": {"text": f"per {line.axis}"},
        "xaxis": {"title": {"text": line.axis}, **({"dtick": 1} if is_short else {})},
        "yaxis": axis.layout(),
        "shapes": [limit_line()] if unit is Unit.BAND else [],
        "legend": {**LEGEND, "x": 1, "xanchor": "right"},
    }
    return {"data": shown, "layout": layout}


def _values(sample: Sample, unit: Unit, sampled: int, elements: int) -> Figure:
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
                    "text": told([error[n] for n in shown], writer(unit)),
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
            "title": {"text": _of_all(len(oracle), elements)},
            "xaxis": {"title": {"text": "oracle"}},
            "yaxis": {"title": {"text": "candidate"}},
            "shapes": [{**diagonal, "line": {"color": ORANGE, "width": 1, "dash": "dot"}, "layer": "below"}],
            "legend": {**LEGEND, "x": 1, "xanchor": "right"},
        },
    }


def _of_all(shown: int, elements: int) -> str:
    return f"all {shown} elements" if shown >= elements else f"{shown} of {elements} elements, worst included"


def _binned(line: Line, width: int) -> Line:
    """Put so many neighbouring bins together, each of the weight of its judged elements."""
    if width == 1:
        return line
    bins = list(zip(line.counts, line.largest, line.rms, strict=True))
    counts, largest, rms = [], [], []
    for first in range(0, len(bins), width):
        held = [(n, most, root) for n, most, root in bins[first : first + width] if n]
        count = sum(n for n, _, _ in held)
        # A product without limit is inf; a power raises.
        squares = sum(n * (root * root) for n, _, root in held)
        counts.append(count)
        largest.append(max((most for _, most, _ in held), default=math.nan))
        rms.append(math.sqrt(squares / count) if count else math.nan)
    return replace(line, starts=line.starts[::width], largest=largest, rms=rms, counts=counts)


def _lasts(line: Line, width: int) -> list[int]:
    """Return the last place, or rank, of each bin when so many are put together."""
    if line.dim is None:
        ranks = line.starts
        return [ranks[min(first + width, len(ranks)) - 1] for first in range(0, len(ranks), width)]
    return [*(start - 1 for start in line.starts[width::width]), line.size - 1]
