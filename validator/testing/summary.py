"""The summary of a run that a manager can read: in a terminal, and as Markdown."""

import html
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from validator.escapes import printable
from validator.testing.answers import Answer, Suite, Summary
from validator.testing.records import figure_text

__all__ = ["summary_markdown", "summary_screen"]

_FIGURES = 4


def summary_screen(summary: Summary) -> RenderableType:
    """Return a table a suite, a line a test, and the verdict in a sentence beneath."""
    parts: list[RenderableType] = [Text(printable(str(summary.settings)), style="dim")]
    for suite in summary.suites:
        parts += [Text(), _table(suite)]
    parts += [Text(), Text(printable(summary.sentence), style=summary.verdict.style)]
    return Group(*parts)


def summary_markdown(summary: Summary) -> str:
    """Return the summary as Markdown, with a heading, for a comment or a job's page."""
    lines = [f"## {_escaped(summary.sentence)}", "", f"`{printable(str(summary.settings))}`"]
    for suite in summary.suites:
        lines += ["", f"### {_escaped(suite.name)}", "", "| asked | result | figures |", "|---|---|---|"]
        for answer in suite.answers:
            cells = (answer.asked, answer.ending.words, _said(answer))
            lines.append(f"| {' | '.join(map(_escaped, cells))} |")
    return "\n".join(lines) + "\n"


def _table(suite: Suite) -> Table:
    table = Table(
        title=Text(printable(suite.name), style="bold"),
        title_justify="left",
        show_header=bool(suite.answers),
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column("asked", ratio=5)
    table.add_column("result", no_wrap=True)
    table.add_column("figures", ratio=4)
    for answer in suite.answers:
        table.add_row(
            Text(printable(answer.asked)),
            Text(answer.ending.words, style=answer.ending.style),
            Text(printable(_said(answer))),
        )
    if not suite.answers:
        table.add_row(Text("no test ran", style="yellow"))
    return table


def _said(answer: Answer) -> str:
    return "; ".join(_parts(answer))


def _parts(answer: Answer) -> Iterator[str]:
    """Return why a test did not pass, and the first of its figures."""
    if answer.message:
        yield answer.message.partition("\n")[0]
    if answer.module is not None and answer.module not in answer.message:
        yield f"at {answer.module or 'the model itself'}"
    if answer.rank is not None and f"rank {answer.rank}" not in answer.message:
        yield f"rank {answer.rank}"
    yield from (figure_text(figure) for figure in answer.figures[:_FIGURES])


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is, in a table's cell."""
    shown = html.escape(printable(text.replace("\n", " ")), quote=False)
    return "".join(f"\\{c}" if c in r"\`*_|[]#~" else c for c in shown)
