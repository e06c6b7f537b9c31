r"""A screen as Markdown in GitHub's flavour, such as for a comment on a pull request.

What is shown may hold names that users chose, and none of it is read as Markdown or HTML. Names stand in code
spans, where GitHub looks for no users, issues or emoji either. In prose every character that has a meaning is
escaped, and a zero-width space follows `@`, `#`, `:` and `GH-`, which GitHub reads after the escapes are
gone. In a table a code span can't hold every `|`, so a name with one is written in HTML, character by
character.

GitHub refuses a comment that is too long, so long texts are cut, and the longest sections lose their last
lines until the whole fits.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from validator.escapes import printable
from validator.report.phrases import NO_BREAK_SPACE
from validator.report.screen import Column, Kind, Screen, Section, Table

__all__ = ["MOST_CHARACTERS", "code", "prose", "to_markdown"]

MOST_CHARACTERS = 65_000
"""Of a document. GitHub takes 65,536 in a comment, and a workflow may write a line of its own around it."""

_LONGEST_NAME, _LONGEST_TEXT = 400, 2_000
"""Characters of what stands in a heading or a cell, and of a row of text, before any is escaped."""

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


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    """A section: what comes before its lines and after them, and how many of them were left out."""

    before: str
    lines: list[str]
    after: str
    left_out: int = 0

    def __str__(self) -> str:
        more = [f"\n... and {self.left_out} more, which a comment has no room for"] if self.left_out else []
        return self.before + "\n".join([*self.lines, *more]) + self.after


def to_markdown(screen: Screen) -> str:
    """Return the screen as a Markdown document: a heading, tables, lists, and what is folded collapsed.

    It has at most `MOST_CHARACTERS`.
    """
    heading = f"### {prose(_cut(screen.headline))}"
    parts = [_part(section) for section in screen.sections if section.rows]
    while len(document := _joined(heading, parts)) > MOST_CHARACTERS:
        longest = max(parts, key=lambda part: len(str(part)))
        if longest.lines:
            longest.lines.pop()
            longest.left_out += 1
        else:
            parts.remove(longest)
    return document


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


def _joined(heading: str, parts: Sequence[_Part]) -> str:
    return "\n\n".join([heading, *map(str, parts)]) + "\n"


def _part(section: Section | Table) -> _Part:
    title, before, after = _cut(section.title), "", ""
    if section.folded:
        # A line of HTML, in which no Markdown is read.
        summary = html.escape(_LATE.sub(_ZERO_WIDTH_SPACE, _shown(title)))
        before, after = f"<details><summary>{summary}</summary>\n\n", "\n\n</details>"
    elif title:
        before = f"**{prose(title)}**\n\n"
    if isinstance(section, Table):
        return _Part(before=f"{before}{_head(section)}\n", lines=_table(section), after=after)
    return _Part(before=before, lines=_list(section), after=after)


def _list(section: Section) -> list[str]:
    lines = []
    for row in section.rows:
        text = _cut(row.text, _LONGEST_TEXT)
        shown = code(text) if row.command else prose(text)
        lines.append(f"- {prose(_cut(row.label))}: {shown}" if row.label else f"- {shown}")
    return lines


def _head(table: Table) -> str:
    rules = ["--:" if column.kind is Kind.NUMBER else "---" for column in table.columns]
    return "\n".join(map(_line, ([prose(_cut(column.name)) for column in table.columns], rules)))


def _table(table: Table) -> list[str]:
    return [
        _line([_cell(column, _cut(cell)) for column, cell in zip(table.columns, row, strict=True)])
        for row in table.rows
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(column: Column, text: str) -> str:
    return code(text) if column.kind is Kind.NAME else prose(text)


def _cut(text: str, longest: int = _LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def _shown(text: str) -> str:
    return printable(text.replace(NO_BREAK_SPACE, " "))
