"""A heat map of single elements of an edge: only the part that is looked at is read from the file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from validator.checks.judged_values import Elements, JudgedValues, StoredEdge
from validator.report.figures.drawing import Figure
from validator.report.figures.heat import limit_scale, shade
from validator.report.notebook.names import told_apart

__all__ = ["MEASURES", "SIDE", "View", "dim_names", "elements_figure", "first_view"]

SIDE = 128
"""At most so many rows, and columns, are shown at once."""

Values = npt.NDArray[np.float64]
Shades = list[list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which part of an edge is shown.

    Attributes:
        rows: dim that goes down, or None where the edge has fewer than two.
        columns: dim that goes to the right, or None of a single number.
        start: index of the upper left element; in the other dims, the place that is shown.
    """

    rows: int | None
    columns: int | None
    start: tuple[int, ...]

    def index(self, shape: Sequence[int]) -> tuple[slice | int, ...]:
        """Return what to read of an edge of a shape."""
        return tuple(
            slice(first, min(first + SIDE, size)) if dim in (self.rows, self.columns) else first
            for dim, (first, size) in enumerate(zip(self.start, shape, strict=True))
        )


def _error(read: Elements) -> Values:
    """Return |d| over what is allowed.

    NaN where nothing is judged; 0 where both are the same or rounding decides; inf where nothing may differ
    and does, and for a value of another class than the oracle's, such as NaN for a number.
    """
    oracle, candidate, allowed = read.oracle, read.candidate, read.allowed
    same = (candidate == oracle) | (np.isnan(candidate) & np.isnan(oracle)) | np.isnan(allowed)
    apart = np.nan_to_num(np.abs(candidate - oracle) / allowed, nan=np.inf, posinf=np.inf)
    return np.where(np.isposinf(allowed), np.nan, np.where(same, 0.0, apart))


_ERROR = "error / allowed"

MEASURES: Mapping[str, Callable[[Elements], Values]] = {
    _ERROR: _error,
    "candidate - oracle": lambda read: read.candidate - read.oracle,
    "oracle": lambda read: read.oracle,
    "candidate": lambda read: read.candidate,
    "allowed": lambda read: read.allowed,
}
"""What of an element is shown."""


def dim_names(edge: StoredEdge) -> list[str]:
    """Return the names of the dims of an edge, no two of them equal."""
    return told_apart([name or f"dim {dim}" for dim, name in enumerate(edge.dims)], "dim")


def first_view(edge: StoredEdge, worst: Sequence[int] | None) -> View:
    """Return the view that a reader starts from: the last two dims, around the worst element."""
    dims = len(edge.shape)
    rows, columns = (dims - 2 if dims > 1 else None), (dims - 1 if dims else None)
    at = list(worst) if worst is not None and len(worst) == dims else [0] * dims
    start = [
        max(0, min(place - SIDE // 2, size - SIDE)) if dim in (rows, columns) else place
        for dim, (place, size) in enumerate(zip(at, edge.shape, strict=True))
    ]
    return View(rows=rows, columns=columns, start=tuple(start))


def elements_figure(values: JudgedValues, edge: StoredEdge, view: View, measure: str) -> Figure:
    """Draw a part of an edge.

    Args:
        values: the file.
        edge: one of its edges.
        view: the part.
        measure: one of `MEASURES`.

    Raises:
        CaptureError: the file is damaged.
    """
    read = values.read(edge, view.index(edge.shape))
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.asarray(MEASURES[measure](read))
    if view.rows is not None and view.columns is not None and view.rows > view.columns:
        shown = shown.T
    shown = shown.reshape(-1, shown.shape[-1] if shown.ndim else 1)
    shades, colours = _shaded(shown) if measure == _ERROR else _spread(shown, measure)
    return {
        "data": [
            {
                "type": "heatmap",
                "x": _places(view.columns, view, shown.shape[1]),
                "y": _places(view.rows, view, shown.shape[0]),
                "z": shades,
                "text": [[f"{value:.6g}" for value in row] for row in shown.tolist()],
                "hovertemplate": f"{_title(view.rows, edge)} %{{y}}, {_title(view.columns, edge)} %{{x}}: "
                "%{text}<extra></extra>",
                **colours,
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": _title(view.columns, edge)}},
            "yaxis": {"title": {"text": _title(view.rows, edge)}, "autorange": "reversed"},
        },
    }


def _shaded(errors: Values) -> tuple[Shades, dict[str, object]]:
    """Return colours on the scale that the other figures have for errors over their limit."""
    colours = limit_scale(_ERROR) | {"xgap": 0, "ygap": 0}
    return [[shade(value) for value in row] for row in errors.tolist()], colours


def _spread(values: Values, measure: str) -> tuple[Shades, dict[str, object]]:
    """Return colours from 0 to the largest value; where there are negative ones 0 is in the middle."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    reach = max(-low, high) or 1.0
    shades: Shades = [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]
    return shades, {
        "colorscale": "RdBu" if low < 0 else "Cividis",
        "zmin": -reach if low < 0 else 0.0,
        "zmax": reach,
        "colorbar": {"title": {"text": measure, "side": "right"}},
    }


def _places(dim: int | None, view: View, count: int) -> list[int]:
    first = 0 if dim is None else view.start[dim]
    return list(range(first, first + count))


def _title(dim: int | None, edge: StoredEdge) -> str:
    return "" if dim is None else dim_names(edge)[dim]
