r"""A screen as Markdown in GitHub's flavour, such as for a comment on a pull request.

What is shown may hold names that users chose, and none of it is read as Markdown or HTML. Names stand in code
spans, where GitHub looks for no users, issues or emoji either. In prose every character that has a meaning is
escaped, and a zero-width space follows `@`, `#`, `:` and `GH-`, which GitHub reads after the escapes are
gone. In a table a code span can't hold every `|`, so a name with one is written in HTML, character by
character.
"""

import html
import re
from collections.abc import Iterator

from validator.escapes import printable
from validator.report.phrases import NO_BREAK_SPACE
from validator.report.screen import Column, Kind, Screen, Section, Table

__all__ = ["code", "prose", "to_markdown"]

_MEANING = re.compile(
    r"""[\\`*_{}\[\]<>#!|~$&@]  # wherever they stand
    | ^[-+=](?=[-=\s]|$)  # an item of a list, a rule
    | :(?=//) | (?<=www)\.  # a link""",
    re.IGNORECASE | re.VERBOSE,
)
_ORDINAL = re.compile(r"^(\d+)([.)])(?=\s|$)")
_LATE = re.compile(r"(?<=[@#:])(?=\w)|(?<=\bGH-)(?=\d)", re.IGNORECASE)
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"


def to_markdown(screen: Screen) -> str:
    """Return the screen as a Markdown document: a heading, tables, lists, and what is folded collapsed."""
    blocks = [f"### {prose(screen.headline)}"]
    for section in screen.sections:
        if section.rows:
            body = _table(section) if isinstance(section, Table) else _list(section)
            blocks += _titled(section.title, body, folded=section.folded)
    return "\n\n".join(blocks) + "\n"


def prose(text: str) -> str:
    """Return `text` so that it is shown as it is."""
    escaped = _MEANING.sub(r"\\\g<0>", _LATE.sub(_ZERO_WIDTH_SPACE, _shown(text).strip()))
    return _ORDINAL.sub(r"\1\\\2", escaped)


def code(text: str) -> str:
    """Return `text` in a code span, also one of a table."""
    shown = _shown(text)
    if not shown.strip():
        return ""
    if "`" in shown or "|" in shown:
        entities = _PUNCTUATION.sub(lambda found: f"&#{ord(found[0])};", shown)
        return f"<code>{entities}</code>"
    return f"`{shown}`"


def _titled(title: str, body: str, *, folded: bool) -> Iterator[str]:
    if folded:
        # A line of HTML, in which no Markdown is read.
        yield f"<details><summary>{html.escape(_LATE.sub(_ZERO_WIDTH_SPACE, _shown(title)))}</summary>"
        yield body
        yield "</details>"
    else:
        if title:
            yield f"**{prose(title)}**"
        yield body


def _list(section: Section) -> str:
    lines = []
    for row in section.rows:
        text = code(row.text) if row.command else prose(row.text)
        lines.append(f"- {prose(row.label)}: {text}" if row.label else f"- {text}")
    return "\n".join(lines)


def _table(table: Table) -> str:
    rules = ("--:" if column.kind is Kind.NUMBER else "---" for column in table.columns)
    lines = [[prose(column.name) for column in table.columns], list(rules)]
    lines += [
        [_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(column: Column, text: str) -> str:
    return code(text) if column.kind is Kind.NAME else prose(text)


def _shown(text: str) -> str:
    return printable(text.replace(NO_BREAK_SPACE, " "))
