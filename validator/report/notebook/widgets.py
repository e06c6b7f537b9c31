"""The widgets of the interactive view: an overview, the edge that was picked, and its elements."""

import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from validator.checks.findings import Judgement, Outcome
from validator.checks.judged_values import JudgedValues
from validator.errors import CaptureError
from validator.report import phrases
from validator.report.figures.drawing import Figure, edge_label
from validator.report.figures.edge import edge_figures
from validator.report.figures.execution import worst_judgement
from validator.report.notebook.cell import to_html
from validator.report.notebook.elements import MEASURES, View, dim_names, elements_figure, first_view
from validator.report.notebook.names import told_apart
from validator.report.notebook.plot_widget import PlotWidget
from validator.report.notebook.plots import OUTCOME_FIGURES
from validator.report.page.data import edge_rows
from validator.report.screen import Row, Screen, Section

__all__ = ["explorer_box"]


def explorer_box(outcome: Outcome, values: JudgedValues | None) -> ipywidgets.VBox:
    """Return the box with all widgets; a click on the overview picks an edge, as the list below it does."""
    drawn = {name: draw(outcome) for name, draw in OUTCOME_FIGURES.items()}
    overviews = {name: figure for name, figure in drawn.items() if figure is not None}
    names = told_apart([phrases.shown(edge_label(j)) for j in outcome.judgements], "edge")
    edge = ipywidgets.Dropdown(
        description="edge",
        options=[(name, row) for row, name in enumerate(names)],
        value=worst_judgement(outcome),
        layout={"width": "auto"},
    )
    overview = ipywidgets.Dropdown(description="overview", options=list(overviews))
    above = _live(lambda: overviews[overview.value], overview)

    def pick_clicked(row: Any) -> None:
        if row in range(len(names)):
            edge.value = row

    above.on_click(pick_clicked)
    panel = ipywidgets.VBox()

    def pick(_: Any = None) -> None:
        if edge.value is not None:
            _replace(panel, _edge_widgets(outcome.judgements[edge.value], values))

    edge.observe(pick, names="value")
    pick()
    return ipywidgets.VBox([overview, above, edge, panel])


def _live(draw: Callable[[], Figure], *controls: ipywidgets.ValueWidget) -> PlotWidget:
    """Return a plot that is drawn anew when one of its controls changes."""
    plot = PlotWidget(draw())

    def redraw(_: Any) -> None:
        plot.figure = draw()

    for control in controls:
        control.observe(redraw, names="value")
    return plot


def _replace(box: ipywidgets.Box, widgets: Sequence[ipywidgets.Widget]) -> None:
    """Show other widgets in a box, and free what was shown: kernel and page keep a widget until then."""
    old, box.children = box.children, tuple(widgets)
    for widget in old:
        _close(widget)


def _close(widget: ipywidgets.Widget) -> None:
    """Close a widget and those that belong to it alone; a plot's library belongs to all plots."""
    for inner in getattr(widget, "children", ()):
        _close(inner)
    parts = [getattr(widget, part, None) for part in ("layout", "style")]
    widget.close()
    for part in parts:
        if isinstance(part, ipywidgets.Widget):
            part.close()


def _edge_widgets(judgement: Judgement, values: JudgedValues | None) -> list[ipywidgets.Widget]:
    rows = tuple(Row(label=name, text=text) for name, text in edge_rows(judgement))
    facts = Screen(headline=edge_label(judgement), style="", sections=(Section(title="figures", rows=rows),))
    shown: list[ipywidgets.Widget] = [ipywidgets.HTML(to_html(facts))]
    if judgement.profile is not None:
        figures = edge_figures(judgement.profile)
        name = ipywidgets.ToggleButtons(description="plot", options=list(figures))
        shown += [name, _live(lambda: figures[name.value], name)]
    return shown + (_elements(judgement, values) if values is not None else [])


def _elements(judgement: Judgement, values: JudgedValues) -> list[ipywidgets.Widget]:
    """Return the controls of the heat map of single elements, and the map."""
    edge = values.find(judgement)
    if edge is None or 0 in edge.shape:
        return [ipywidgets.HTML(_text("The file of values holds no elements of this edge."))]
    start = first_view(edge, judgement.evidence.worst_index)
    names = dim_names(edge)
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

    trouble = ipywidgets.HTML()

    def draw() -> Figure:
        rows, columns = ([None, None] + [control.value for control in across])[-2:]
        view = View(
            rows=None if rows == columns else rows,
            columns=columns,
            start=tuple(place.value for place in places),
        )
        try:
            figure = elements_figure(values, edge, view, measure.value)
        except CaptureError as error:
            trouble.value = _text(str(error))
            return {"data": [], "layout": {}}
        trouble.value = ""
        return figure

    shown = _live(draw, measure, *across, *places)
    return [ipywidgets.HBox([measure, *across]), ipywidgets.VBox(places), trouble, shown]


def _text(text: str) -> str:
    return f"<p>{html.escape(phrases.shown(text))}</p>"
