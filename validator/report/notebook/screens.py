"""What a notebook shows of each record, as HTML and as its twin in plain text."""

from typing import Any

from validator.capturing.reader import Capture
from validator.checks.findings import Finding
from validator.report.capture_about import about_capture
from validator.report.digest import finding_screen
from validator.report.notebook.cell import to_html
from validator.report.screen import Screen, plain_text
from validator.report.shown import Shown

__all__ = ["html_of", "text_of"]

_WIDTH = 100


def html_of(record: Any) -> str:
    """Return a piece of HTML for a record that is `Displayed`."""
    return to_html(record.page() if isinstance(record, Shown) else _screen(record))


def text_of(record: Any) -> str:
    """Return the same in plain text."""
    return str(record) if isinstance(record, Shown) else plain_text(_screen(record), _WIDTH)


def _screen(record: Any) -> Screen:
    if isinstance(record, Finding):
        return finding_screen(record)
    if isinstance(record, Capture):
        return about_capture(record)
    raise TypeError(f"no screen shows a {type(record).__name__}")
