"""A plotly figure as a widget that is drawn anew in its place.

Plotly's own `FigureWidget` sends its figure after it was made, and a page that is quicker leaves it empty; it
sends 5 MB of JavaScript with each figure, and stays 700 pixels wide. So the page gets plotly once, and each
figure whole.
"""

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import anywidget
import ipywidgets
import traitlets
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from validator.report.figures.drawing import Figure
from validator.report.figures.toolbar import toolbar_script

__all__ = ["CODE", "PlotWidget"]

_DRAWING = resources.files("validator.report.notebook").joinpath("plot.js").read_text(encoding="utf-8")
CODE = f"{toolbar_script()}\n{_DRAWING}"
"""The module that draws a plot."""


class _Library(anywidget.AnyWidget):
    """Holds the source of plotly's library, and its version, for the page; it is not shown."""

    _esm = "export default {};"
    source = traitlets.Unicode().tag(sync=True)
    version = traitlets.Unicode().tag(sync=True)


@cache
def _made_library() -> _Library:
    return _Library(source=get_plotlyjs(), version=get_plotlyjs_version())


def _library() -> _Library:
    """Return the one library of this kernel, or a new one: `Widget.close_all()` closes it like any widget."""
    if _made_library().comm is None:
        _made_library.cache_clear()
    return _made_library()


class PlotWidget(anywidget.AnyWidget):
    """A figure, as wide as its cell.

    Args:
        figure: what is drawn.

    Attributes:
        figure: the same; what is set is drawn in its place.
    """

    _esm = CODE

    figure = traitlets.Dict().tag(sync=True)
    library = traitlets.Instance(ipywidgets.Widget).tag(sync=True, **ipywidgets.widget_serialization)

    def __init__(self, figure: Figure) -> None:
        super().__init__(figure=figure, library=_library())

    def on_click(self, told: Callable[[Any], None]) -> None:
        """Have something told the `customdata` of each point that a reader clicks."""
        self.on_msg(lambda widget, content, buffers: told(content.get("clicked")))
