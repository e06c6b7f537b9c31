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
"""From the lowest to the highest number at an axis of errors; what is beyond them stands at an end."""
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
    """A logarithmic axis whose ends, a whole decade off, are for 0 and for what has no limit.

    Args:
        values: all errors that are placed on the axis; NaN is none.
        title: of the axis.
        limit: where a `limit_line` may stand. The axis has it, and a numbered tick on either side of it,
            whatever the errors are; those that are many powers of ten away from it stand at an end.
    """

    def __init__(self, values: Iterable[float], title: str, limit: float = 1.0) -> None:
        finite = [value for value in rounded(values) if value]
        self._title = title
        at, logs = math.log10(limit), [math.log10(value) for value in finite]
        before = math.ceil(at) - 1
        high = min(max([math.floor(at) + 1, *map(math.ceil, logs)]), before + _DECADES)
        low = max(min([before, *map(math.floor, logs)]), high - _DECADES)
        self._low, self._high = _with_neighbours(low), _with_neighbours(high)
        self._least, self._most = _power(self._low), _power(self._high)
        self._nothing, self._no_limit = _power(self._low - 1), _power(self._high + 1)
        self._is_cut_below = any(value < self._least for value in finite)
        self._is_cut_above = any(value > self._most for value in finite)

    def place(self, values: Iterable[float]) -> list[float | None]:
        """Return where values stand."""
        listed = list(values)
        return [
            self._place(value if shown is None else shown)
            for value, shown in zip(listed, rounded(listed), strict=True)
        ]

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
        ends = None, self._nothing, self._no_limit
        if all(shown not in ends and (shown != 1 or value == 1) for value, shown in pairs):
            return f"{place}: %{{y}}"
        return [f"{place}: {value}" for value in told(values, write)]

    def layout(self) -> dict[str, Any]:
        """Return the axis."""
        exponents = range(self._low, self._high + 1)
        nothing = f"< {self._least:g}" if self._is_cut_below else "0"
        no_limit = f"> {self._most:g}" if self._is_cut_above else "∞"
        return {
            "type": "log",
            "title": {"text": self._title},
            "range": [self._low - 1.15, self._high + 1.15],
            "tickvals": [self._nothing, *map(_power, exponents), self._no_limit],
            "ticktext": [nothing, *(f"{_power(n):g}" for n in exponents), no_limit],
        }

    def _place(self, value: float) -> float | None:
        if math.isnan(value):
            return None
        if value < self._least:
            return self._nothing
        return value if value <= self._most else self._no_limit


def _with_neighbours(exponent: int) -> int:
    """Return the nearest exponent whose neighbours are powers of ten that a float64 holds, too."""
    return min(max(exponent, 1 - _LARGEST), _LARGEST - 1)


def _power(exponent: int) -> float:
    return float(f"1e{exponent}")


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
