"""The widgets of the interactive view: an overview, the edge that was picked, and its elements."""

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
import plotly.graph_objects as go

from validator.checks.findings import Judgement, Outcome
from validator.checks.judged_values import JudgedValues
from validator.report.digest import digest
from validator.report.figures.drawing import Figure, edge_label
from validator.report.figures.edge import edge_figures
from validator.report.figures.execution import worst_judgement
from validator.report.notebook.cell import to_html
from validator.report.notebook.elements import MEASURES, View, elements_figure, first_view
from validator.report.notebook.plots import OUTCOME_FIGURES
from validator.report.page.data import edge_rows
from validator.report.screen import Row, Screen, Section

__all__ = ["explorer_box"]

_GRID = {"gridcolor": "rgba(127, 127, 127, 0.25)", "zerolinecolor": "rgba(127, 127, 127, 0.25)"}
_LAYOUT = {
    "autosize": True,
    "height": 360,
    "margin": {"l": 70, "r": 20, "t": 50, "b": 50},
    "paper_bgcolor": "rgba(0, 0, 0, 0)",
    "plot_bgcolor": "rgba(0, 0, 0, 0)",
    "font": {"color": "#767676"},  # readable on white and on black
    "xaxis": _GRID,
    "yaxis": _GRID,
    "legend": {"bgcolor": "rgba(0, 0, 0, 0)"},
}


def explorer_box(outcome: Outcome, values: JudgedValues | None) -> ipywidgets.VBox:
    """Return the box with all widgets; a click on the overview picks an edge, as the list below it does."""
    drawn = {name: draw(outcome) for name, draw in OUTCOME_FIGURES.items()}
    overviews = {name: figure for name, figure in drawn.items() if figure is not None}
    edge = ipywidgets.Dropdown(
        description="edge",
        options=[(edge_label(j), row) for row, j in enumerate(outcome.judgements)],
        value=worst_judgement(outcome),
        layout={"width": "auto"},
    )
    overview = ipywidgets.Dropdown(description="overview", options=list(overviews))
    above = _Swapping(lambda: _clickable(overviews[overview.value], edge), overview)
    panel = ipywidgets.VBox()

    def pick(_: Any = None) -> None:
        if edge.value is not None:
            _replace(panel, _edge_widgets(outcome.judgements[edge.value], values))

    edge.observe(pick, names="value")
    pick()
    head = ipywidgets.HTML(to_html(digest(outcome)))
    return ipywidgets.VBox([head, overview, above.box, edge, panel])


class _Swapping:
    """A box whose figure is drawn anew when one of its controls changes."""

    def __init__(self, draw: Callable[[], go.FigureWidget], *controls: ipywidgets.ValueWidget) -> None:
        self._draw = draw
        self.box = ipywidgets.VBox([draw()])
        for control in controls:
            control.observe(self._redraw, names="value")

    def _redraw(self, _: Any) -> None:
        _replace(self.box, [self._draw()])


def _replace(box: ipywidgets.Box, widgets: Sequence[ipywidgets.Widget]) -> None:
    """Show other widgets in a box, and free what was shown: kernel and page keep a widget until then."""
    old, box.children = box.children, tuple(widgets)
    for widget in old:
        _close(widget)


def _close(widget: ipywidgets.Widget) -> None:
    for inner in getattr(widget, "children", ()):
        _close(inner)
    widget.close()


def _widget(figure: Figure) -> go.FigureWidget:
    """Return a figure as wide as the cell, on the notebook's own ground."""
    return go.FigureWidget(figure).update_layout(_LAYOUT)


def _clickable(figure: Figure, edge: ipywidgets.Dropdown) -> go.FigureWidget:
    widget = _widget(figure)

    def picked(trace: Any, points: Any, state: Any) -> None:
        for place in points.point_inds:
            row = (
                trace.customdata[place[0]][place[1]]
                if isinstance(place, tuple | list)
                else trace.customdata[place]
            )
            if row is not None:
                edge.value = int(row)
            return

    for trace in widget.data:
        if trace.customdata is not None:
            trace.on_click(picked)
    return widget


def _edge_widgets(judgement: Judgement, values: JudgedValues | None) -> list[ipywidgets.Widget]:
    rows = tuple(Row(label=name, text=text) for name, text in edge_rows(judgement))
    facts = Screen(headline=edge_label(judgement), style="", sections=(Section(title="figures", rows=rows),))
    shown: list[ipywidgets.Widget] = [ipywidgets.HTML(to_html(facts))]
    if judgement.profile is not None:
        figures = edge_figures(judgement.profile)
        name = ipywidgets.ToggleButtons(description="plot", options=list(figures))
        shown += [name, _Swapping(lambda: _widget(figures[name.value]), name).box]
    return shown + (_elements(judgement, values) if values is not None else [])


def _elements(judgement: Judgement, values: JudgedValues) -> list[ipywidgets.Widget]:
    """Return the controls of the heat map of single elements, and the map."""
    edge = values.find(judgement)
    if edge is None or 0 in edge.shape:
        return []
    start = first_view(edge, judgement.evidence.worst_index)
    names = [name or f"dim {dim}" for dim, name in enumerate(edge.dims)]
    dims = [(name, dim) for dim, name in enumerate(names)]
    measure = ipywidgets.Dropdown(description="elements", options=list(MEASURES))
    across = [
        ipywidgets.Dropdown(description=which, options=dims, value=dim)
        for which, dim in (("down", start.rows), ("across", start.columns))
        if dim is not None
    ]
    places = [
        ipywidgets.IntSlider(description=name, value=first, max=size - 1, continuous_update=False)
        for name, first, size in zip(names, start.start, edge.shape, strict=True)
    ]

    def draw() -> go.FigureWidget:
        rows, columns = ([None, None] + [control.value for control in across])[-2:]
        view = View(
            rows=None if rows == columns else rows,
            columns=columns,
            start=tuple(place.value for place in places),
        )
        return _widget(elements_figure(values, edge, view, measure.value))

    shown = _Swapping(draw, measure, *across, *places)
    return [ipywidgets.HBox([measure, *across]), ipywidgets.VBox(places), shown.box]
