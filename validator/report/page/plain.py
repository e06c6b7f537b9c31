"""The page of a screen: what a terminal shows as a document, and plots."""

from collections.abc import Mapping

from validator.report import palette
from validator.report.figures.drawing import Figure
from validator.report.page.document import render
from validator.report.screen import Screen

__all__ = ["screen_page"]


def screen_page(screen: Screen, figures: Mapping[str, Figure]) -> str:
    """Return a page that opens from disk.

    Args:
        screen: what it shows.
        figures: plotly figures of finite numbers, by their captions.
    """
    return render(
        "plain.html.jinja",
        title=screen.headline,
        script="plain.js",
        data=list(figures.values()) or None,
        screen=screen,
        shown=[section for section in screen.sections if section.rows and not section.folded],
        folded=[section for section in screen.sections if section.rows and section.folded],
        captions=list(figures),
        colour=next((code for name, code in palette.STYLES.items() if name in screen.style), None),
    )
