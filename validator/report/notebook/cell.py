"""A screen as the HTML of a notebook's cell.

It takes the notebook's own colours, so that it is readable in light and in dark, runs nothing, and shows
names that users chose as text.
"""

from functools import cache
from importlib import resources

from jinja2 import Environment, Template

from validator.report.phrases import shown
from validator.report.screen import Column, Kind, Screen

__all__ = ["to_html"]

_COLOURS = {"green": "#009E73", "red": "#D55E00", "yellow": "#E69F00"}
"""Told apart by colour-blind readers too, on light and dark: the palette of Okabe and Ito (2008)."""
_CELL = "padding: .15em .8em .15em 0; vertical-align: top; background: transparent"


def to_html(screen: Screen) -> str:
    """Return a piece of HTML with styles of its own; what is folded can be opened."""
    colour = next((code for name, code in _COLOURS.items() if name in screen.style), "currentColor")
    return _template().render(screen=screen, colour=colour, cell=_CELL, shown=shown, side=_side)


@cache
def _template() -> Template:
    source = (
        resources.files("validator.report.notebook").joinpath("cell.html.jinja").read_text(encoding="utf-8")
    )
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def _side(column: Column) -> str:
    return "right" if column.kind is Kind.NUMBER else "left"
