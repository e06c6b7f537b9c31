"""Heat maps of errors over their limits: colours that change at the limit, and axes of names."""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from validator.report.figures.drawing import label, rounded

__all__ = ["COLUMNS", "OVER", "ROWS", "limit_scale", "named_axis", "shade"]

OVER = 1.0001
"""What is at its limit and yet outside of it."""

ROWS, COLUMNS = 20, 40
"""So many names can be read beside a heat map, and below it."""

_LONGEST = 40
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
    return rounded([math.log10(min(max(value, 0.01), 100.0))], 3)[0]


def limit_scale(title: str) -> dict[str, Any]:
    """Return the colours of a heat map of what `shade` returned, and their scale."""
    return {
        "colorscale": [list(stop) for stop in _COLOURS],
        "zmin": -2,
        "zmax": 2,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": title, "side": "right"},
            "tickvals": [-2, -1, 0, 1, 2],
            "ticktext": ["≤ 0.01", "0.1", "1, the limit", "10", "≥ 100"],
        },
    }


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
