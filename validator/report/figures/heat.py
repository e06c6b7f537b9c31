"""Heat maps of errors over their limits: colours that change at the limit, and axes of names."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from validator.report.figures.drawing import label, rounded

__all__ = [
    "COLUMNS",
    "LIMIT_TICKS",
    "OVER",
    "RATIO_TICKS",
    "ROWS",
    "WORD_TICKS",
    "height_of",
    "limit_scale",
    "named_axis",
    "shade",
    "share_scale",
    "share_shade",
]

OVER = 1.0001
"""What is at its limit and yet outside of it."""

ROWS, COLUMNS = 20, 40
"""So many names can be read beside a heat map, and below it."""

LIMIT_TICKS: Mapping[float, str] = {-2: "≤ 0.01", -1: "0.1", 0: "1, the limit", 1: "10", 2: "≥ 100"}
RATIO_TICKS = {**LIMIT_TICKS, 0: "1"}
"""Of what is judged by nothing, or not by that alone."""
WORD_TICKS: Mapping[float, str] = {-1: "within", 1: "beyond"}
"""Of figures that have several scales."""

_LONGEST = 40
_HEIGHT, _ROW, _AROUND = 330, 18, 90
"""Pixels of a plot at least, of a row whose name is written, and above and below the rows."""

_FEWEST = 1e-4
"""In percent: shares of fewer elements have one colour."""
_SHARES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
_LIMIT = 0.5
"""Where on the scale the limit is."""

# Blue up to the limit and vermillion from there on, which readers tell apart whatever their colour vision.
# The lightness falls all along the scale, and by a step at the limit: paper without colours shows the same.
# Neither end is a page's white or black, which cells without a value leave open.
_COLOURS = (
    (0.0, "#cad7e2"),
    (0.25, "#9fc5e3"),
    (_LIMIT, "#67acdc"),
    (_LIMIT + 1e-6, "#d55e00"),
    (0.75, "#ab3a00"),
    (1.0, "#7d1f00"),
)


def shade(value: float) -> float | None:
    """Return where a value over its limit is on the colour scale: powers of ten, cut off at 0.01 and 100."""
    if math.isnan(value):
        return None
    if value > 1:
        value = max(value, OVER)
    return rounded([math.log10(min(max(value, 0.01), 100.0))], 3)[0]


def share_shade(percent: float) -> float:
    """Return where a share is: nothing at the lower end, and any share past the limit, in powers of ten."""
    if not percent:
        return -2.0
    decades = math.log10(max(percent, _FEWEST) / _FEWEST) / math.log10(100 / _FEWEST)
    return round(max(2 * decades, math.log10(OVER)), 5)


def share_scale(title: str) -> dict[str, Any]:
    """Return the colours of a heat map of what `share_shade` returned, and their scale."""
    low, high = -0.5, 2.0  # below the limit there is nothing but nothing
    none = [[at, _COLOURS[0][1]] for at in (0.0, low / (low - high))]
    some = [[(4 * at - 2 - low) / (high - low), colour] for at, colour in _COLOURS if at > _LIMIT]
    ticks = {low / 2: "0", **{share_shade(share): f"{share:g}" for share in _SHARES}}
    return limit_scale(title, ticks) | {"colorscale": [*none, *some], "zmin": low, "zmax": high}


def limit_scale(title: str, ticks: Mapping[float, str] = LIMIT_TICKS) -> dict[str, Any]:
    """Return the colours of a heat map of what `shade` returned, and their scale.

    Args:
        title: of the scale.
        ticks: what is written beside it, by the power of ten.
    """
    return {
        "colorscale": [list(stop) for stop in _COLOURS],
        "zmin": -2,
        "zmax": 2,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": title, "side": "right"},
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
        },
    }


def height_of(rows: int) -> dict[str, int]:
    """Return the height of a plot, in pixels, in which the names of its rows don't touch; nothing of few."""
    height = _AROUND + _ROW * min(rows, ROWS)
    return {"height": height} if height > _HEIGHT else {}


def named_axis(names: Sequence[str], most: int) -> dict[str, Any]:
    """Return an axis on which the n-th name stands at n, so that no two are one place however alike they are.

    Args:
        names: of the rows, or columns.
        most: how many of them can be read; of more, every second, fifth, tenth, ... is written, and the last.
    """
    last = len(names) - 1
    step = next(step for step in _round_numbers() if last // step < most)
    shown = [n for n in range(len(names)) if n == last or (n % step == 0 and last - n >= step)]
    return {
        "tickvals": shown,
        "ticktext": [label(names[n], _LONGEST) for n in shown],
        "showgrid": False,
        "zeroline": False,
    }


def _round_numbers() -> Iterator[int]:
    return (digit * 10**power for power in count() for digit in (1, 2, 5))
