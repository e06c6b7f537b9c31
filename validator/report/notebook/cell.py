"""A screen as the HTML of a notebook's cell.

It takes the notebook's own colours, so that it is readable in light and in dark, runs nothing, and shows
names that users chose as text.
"""

from functools import cache
from importlib import resources

from jinja2 import Environment, Template

from validator.report import palette
from validator.report.phrases import shown
from validator.report.screen import Column, Kind, Screen

__all__ = ["to_html"]

_CELL = "padding: .15em .8em .15em 0; vertical-align: top; background: transparent"


def to_html(screen: Screen) -> str:
    """Return a piece of HTML with styles of its own; what is folded can be opened."""
    colour = next((code for name, code in palette.STYLES.items() if name in screen.style), "currentColor")
    return _template().render(screen=screen, colour=colour, cell=_CELL, shown=shown, style=_style)


@cache
def _template() -> Template:
    source = (
        resources.files("validator.report.notebook").joinpath("cell.html.jinja").read_text(encoding="utf-8")
    )
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def _style(column: Column) -> str:
    """Return how cells are set: a long name breaks anywhere, and leaves other columns their words."""
    side = "right; white-space: nowrap" if column.kind is Kind.NUMBER else "left"
    wrap = "anywhere; min-width: 8em" if column.kind is Kind.NAME else "break-word"
    return f"{_CELL}; text-align: {side}; overflow-wrap: {wrap}"
