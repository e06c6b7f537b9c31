"""How a report is laid out, and drawn in a terminal: a headline, rows with labels, and tables.

`report.markdown` and `report.notebook` draw the same screens elsewhere. What is shown may hold names that
users chose. It is never read as rich markup, and control characters are written as escapes.
"""

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from validator.report.phrases import NO_BREAK_SPACE, printable

__all__ = ["Column", "Kind", "Row", "Screen", "Section", "Table", "plain_text"]

_LABEL_WIDTH = 10
_LEAST_WIDTH = 40
_LEAST_TEXT = 8
_PADDING = 2


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
    """A title, or none, and the rows under it.

    Attributes:
        folded: whether it is opened on request, where that is possible.
    """

    title: str = ""
    rows: tuple[Row, ...]
    folded: bool = False


class Kind(StrEnum):
    """What the cells of a column are: text, a number, or a name out of code."""

    TEXT = "text"
    NUMBER = "number"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        least_width: columns of characters that a terminal must have for this one to be shown.
    """

    name: str
    kind: Kind = Kind.TEXT
    least_width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A title, or none, columns, and rows of as many cells; a table of no rows is not shown."""

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False

    def __post_init__(self) -> None:
        """Refuse a row of another width than the head."""
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None:
            raise ValueError(f"a row of {len(wrong)} cells for {len(self.columns)} columns: {wrong!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A headline in its rich style, and sections with an empty line before each."""

    headline: str
    style: str
    sections: tuple[Section | Table, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one `Text` a line, without trailing spaces, and tables."""
        width = max(options.max_width, _LEAST_WIDTH)
        for line in _wrap(self.headline, width, indent=2):
            yield Text(line, style=self.style)
        for section in self.sections:
            if not section.rows:
                continue
            yield Text("")
            for line in _wrap(section.title, width, indent=2):
                yield Text(line, style="bold")
            if isinstance(section, Table):
                yield _table(section, width)
                continue
            column = max(_LABEL_WIDTH, *(len(row.label) for row in section.rows)) + 2
            for row in section.rows:
                yield from _row(row, width, column)


def plain_text(screen: RenderableType, width: int = 80) -> str:
    """Return what rich draws without colours, wrapped at `width` columns, without a trailing newline."""
    stream = io.StringIO()
    # In a notebook a console would show the text instead of writing it.
    console = Console(file=stream, width=width, color_system=None, legacy_windows=False, force_jupyter=False)
    console.print(screen)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip("\n").split("\n"))


def _table(table: Table, width: int) -> RichTable:
    drawn = RichTable(box=None, pad_edge=True, header_style="dim")
    shown = [i for i, column in enumerate(table.columns) if column.least_width <= width]
    columns = [table.columns[i] for i in shown]
    rows = [[printable(row[i]) for i in shown] for row in table.rows]
    for column, name_width in zip(columns, _name_widths(columns, rows, width), strict=True):
        if column.kind is Kind.NUMBER:
            drawn.add_column(column.name, justify="right", no_wrap=True)
        else:
            drawn.add_column(column.name, overflow="fold", width=name_width)
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _name_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int | None]:
    """Return how wide columns of names are in a table that is too wide: no name is broken inside a word.

    None leaves a column to rich: of other kinds, and all where the others have no room beside such names.
    """
    cells = [[column.name, *(row[i] for row in rows)] for i, column in enumerate(columns)]
    widths = [max(map(cell_len, texts)) for texts in cells]
    excess = sum(widths) + _PADDING * len(columns) - width
    names = [i for i, column in enumerate(columns) if column.kind is Kind.NAME]
    if excess <= 0 or not names:
        return [None] * len(columns)
    for i in sorted(names, key=lambda i: -widths[i]):
        longest = max((cell_len(word) for text in cells[i] for word in text.split()), default=0)
        cut = min(excess, widths[i] - longest)
        widths[i] -= cut
        excess -= cut
    texts = [widths[i] for i, column in enumerate(columns) if column.kind is Kind.TEXT]
    if sum(texts) - excess < sum(min(n, _LEAST_TEXT) for n in texts):
        return [None] * len(columns)
    return [(widths[i] or None) if i in names else None for i in range(len(columns))]


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
