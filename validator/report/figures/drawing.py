"""What all figures share: colours, labels, and axes for errors that may be nothing or without limit."""

import html
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from validator import digits
from validator.checks.findings import Check, Finding, Judgement, Verdict
from validator.checks.profiles import Unit
from validator.escapes import printable
from validator.report import facts, phrases
from validator.report.palette import BLUE, GREY, ORANGE, PALETTE, PURPLE, VERMILLION

__all__ = [
    "BLUE",
    "GREY",
    "LEGEND",
    "ORANGE",
    "PALETTE",
    "VERDICTS",
    "VERMILLION",
    "ErrorAxis",
    "Figure",
    "edge_label",
    "error_title",
    "label",
    "limit_line",
    "over_band",
    "rounded",
    "told",
    "writer",
]

Figure = dict[str, Any]
"""`data` and `layout` as plotly has them, in plain lists and numbers."""

VERDICTS = {
    Verdict.ALIGNED: (BLUE, "circle"),
    Verdict.UNDECLARED_PRECISION: (ORANGE, "diamond"),
    Verdict.DIVERGENT: (VERMILLION, "x"),
    Verdict.INCONCLUSIVE: (PURPLE, "square"),
    Verdict.UNCHECKED: (GREY, "circle-open"),
}
"""Colour and symbol of each: the symbols differ as well as the colours."""

LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
"""A legend that grows upwards from the upper end of a plot, however many lines it takes."""

_LONGEST = 160
_DECADES = 8
"""An axis of errors is no longer than that: what is smaller than its lower end stands there."""
_LARGEST = 308
"""Of the powers of ten that a float64 holds."""
_TITLES = {
    Unit.BAND: "error / band",
    Unit.ULP: "error, ulp",
    Unit.DIFFERENCE: "difference",
}


def label(text: str, longest: int = _LONGEST) -> str:
    """Return text that plotly shows as it is: it reads some HTML in labels.

    Longer names lose their middle, so that two may look alike: let nothing be told apart by its label.
    """
    shown = printable(text)
    if len(shown) > longest:
        shown = f"{shown[: longest // 2]}…{shown[-longest // 2 :]}"
    return html.escape(shown, quote=False)


def edge_label(judged: Judgement | Finding) -> str:
    """Name an edge so that no other edge of the run has the same name, in plain text."""
    rank = judged.rank if judged.check is Check.PARTIAL else None
    return phrases.full_edge_name(judged, call=judged.call, rank=rank)


def error_title(unit: Unit) -> str:
    """Return the title of an axis of errors."""
    return _TITLES[unit]


def writer(unit: Unit) -> Callable[[float], str]:
    """Return what writes errors of a unit: of a ratio to a limit, the text is on its side of the limit."""
    return digits.ratio if unit is Unit.BAND else digits.number


def over_band(judgement: Judgement) -> float:
    """Return `facts.error_over_band` of an edge; NaN where nothing was judged."""
    error = facts.error_over_band(
        verdict=judgement.verdict, arm=judgement.arm, measured=judgement.evidence.max_over_band
    )
    return math.nan if error is None else error


def rounded(values: Iterable[float], digits: int = 3) -> list[float | None]:
    """Return numbers with so many significant digits; None, a gap, for what is not finite."""
    texts = (float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values)
    return [
        math.copysign(sys.float_info.max, text) if text in (-math.inf, math.inf) else text for text in texts
    ]


class ErrorAxis:
    """A logarithmic axis with 0 (and what is too small) at the lower end, and no limit at the upper.

    Args:
        values: all errors that the axis has to show; NaN is none.
        title: of the axis.
        limit: a place that the axis has whatever the errors are, where a `limit_line` may stand.
    """

    def __init__(self, values: Iterable[float], title: str, limit: float = 1.0) -> None:
        finite = [value for value in values if 0 < value < math.inf]
        self._title = title
        logs = [math.log10(value) for value in (*finite, limit)]
        high = math.ceil(max(logs) + math.log10(3))
        high = min(max(high, _DECADES - _LARGEST), _LARGEST)
        low = max(math.floor(min(*logs, logs[-1] - 1)), high - _DECADES)
        self._low, self._high = 10.0**low, 10.0**high
        self._is_cut = any(value < self._low for value in finite)

    def place(self, values: Iterable[float]) -> list[float | None]:
        """Return where values stand."""
        return rounded(
            value if math.isnan(value) else min(max(value, self._low), self._high) for value in values
        )

    def hover(
        self, values: Sequence[float], place: str, write: Callable[[float], str] = digits.ratio
    ) -> str | list[str]:
        """Return the templates of what is shown at values, in words where their places say less.

        Args:
            values: as of `place`.
            place: a template for where they are.
            write: as of `told`.
        """
        pairs = zip(values, self.place(values), strict=True)
        if all(self._low <= value <= self._high and (shown != 1 or value == 1) for value, shown in pairs):
            return f"{place}: %{{y}}"
        return [f"{place}: {value}" for value in told(values, write)]

    def layout(self) -> dict[str, Any]:
        """Return the axis."""
        low, high = round(math.log10(self._low)), round(math.log10(self._high))
        step = max(1, (high - low) // 6)
        exponents = [n for n in range(low, high + 1) if (n - low) % step == 0 and n < high]
        names = [f"< {self._low:g}" if self._is_cut else "0", *(f"{10.0**n:g}" for n in exponents[1:]), "∞"]
        return {
            "type": "log",
            "title": {"text": self._title},
            "range": [low - 0.15, high + 0.15],
            "tickvals": [*(10.0**n for n in exponents), self._high],
            "ticktext": names,
        }


def limit_line(value: float = 1.0) -> dict[str, Any]:
    """Return a line over the whole width of a plot: what is above is outside of the band."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"dash": "dash", "width": 1, "color": GREY},
    }


def told(values: Sequence[float], write: Callable[[float], str] = digits.ratio) -> list[str]:
    """Return errors as a reader is told them.

    Args:
        values: errors over the band, or others; NaN where nothing was judged.
        write: makes text of one: `digits.ratio` of ratios to a limit, `digits.number` of others.
    """
    return ["nothing judged" if math.isnan(value) else write(value) for value in values]
