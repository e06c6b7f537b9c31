"""Labelled rows of text that wrap to the width of the console: how a report is laid out.

What is shown may hold names that users chose. It is never read as rich markup, and control
characters are written as escapes.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from validator.report.phrases import NO_BREAK_SPACE, printable

__all__ = ["Row", "Screen", "Section"]

_LABEL_WIDTH = 10
_LEAST_WIDTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A label and its text; without a label the text begins where labels do.

    Attributes:
        command: whether the text is a shell command, which must survive being wrapped and pasted.
    """

    label: str = ""
    text: str
    command: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A title, or none, and the rows under it."""

    title: str = ""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A headline in its rich style, and sections with an empty line before each."""

    headline: str
    style: str
    sections: tuple[Section, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one `Text` a line, without trailing spaces."""
        width = max(options.max_width, _LEAST_WIDTH)
        for line in _wrap(self.headline, width, indent=2):
            yield Text(line, style=self.style)
        for section in self.sections:
            yield Text("")
            for line in _wrap(section.title, width, indent=2):
                yield Text(line, style="bold")
            column = max(_LABEL_WIDTH, *(len(row.label) for row in section.rows)) + 2
            for row in section.rows:
                yield from _row(row, width, column)


def _row(row: Row, width: int, column: int) -> Iterator[Text]:
    indent = 2 + column if row.label else 2
    continued = " \\" if row.command else ""
    lines = _wrap(row.text, width - indent - len(continued), indent=0 if row.label else 2)
    for i, line in enumerate(lines):
        head = f"{row.label if i == 0 else '':{indent - 2}}"
        tail = continued if i < len(lines) - 1 else ""
        yield Text.assemble("  ", (head, "dim"), line + tail)


def _wrap(text: str, width: int, indent: int) -> list[str]:
    shown = NO_BREAK_SPACE.join(map(printable, text.split(NO_BREAK_SPACE)))
    lines = textwrap.wrap(shown, width, subsequent_indent=" " * indent, break_on_hyphens=False)
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]
