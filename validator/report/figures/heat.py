"""The colours of heat maps of errors over their limits."""

import math
from typing import Any

from validator.report.figures.drawing import rounded

__all__ = ["limit_scale", "shade"]

_COLOURS = "Cividis"  # as readable without colour vision as with it


def shade(value: float) -> float | None:
    """Return where a value over its limit is on the colour scale: powers of ten, cut off at 0.01 and 100."""
    if math.isnan(value):
        return None
    return rounded([math.log10(min(max(value, 0.01), 100.0))], 3)[0]


def limit_scale(title: str) -> dict[str, Any]:
    """Return the colours of a heat map of what `shade` returned, and their scale."""
    return {
        "colorscale": _COLOURS,
        "zmin": -2,
        "zmax": 2,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": title, "side": "right"},
            "tickvals": [-2, -1, 0, 1, 2],
            "ticktext": ["≤ 0.01", "0.1", "1", "10", "≥ 100"],
        },
    }
