"""What all results have in common: one screen that is shown as text, as Markdown and in a notebook."""

import json
from abc import ABC, abstractmethod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from validator.displayed import Displayed
from validator.report import phrases
from validator.report.figures.drawing import Figure
from validator.report.markdown import to_markdown
from validator.report.screen import Screen, plain_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Shown"]


class Shown(Displayed, ABC):
    """A result that shows, saves and tabulates itself.

    Attributes:
        text_width: columns of its plain text.
    """

    __slots__ = ()

    text_width: ClassVar[int] = 80

    @property
    @abstractmethod
    def exit_code(self) -> int:
        """What the command ends with: see `validator.cli`."""

    @abstractmethod
    def __rich__(self) -> Screen:
        """Return what a terminal shows."""

    def page(self) -> Screen:
        """Return what Markdown and a notebook show, where parts can be folded."""
        return self.__rich__()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the document of schema 1 (`validator/report/schema.json`)."""

    @abstractmethod
    def to_frame(self) -> "pd.DataFrame":
        """Return the figures as a table."""

    def to_markdown(self) -> str:
        """Return Markdown in GitHub's flavour, such as for a comment on a pull request."""
        return to_markdown(self.page())

    def to_html(self) -> str:
        """Return a page that opens from disk and asks nothing of any network."""
        from validator.report.page.plain import screen_page

        return screen_page(self.page(), self.figures())

    def figures(self) -> dict[str, Figure]:
        """Return the plots of the page by their captions, as plain plotly figures."""
        return {}

    def write_json(self, path: str | PathLike[str]) -> None:
        """Write the document of schema 1 to `path`, replacing what is there."""
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def write_csv(self, path: str | PathLike[str]) -> None:
        """Write the frame to `path`, replacing what is there.

        A name that a spreadsheet would take for a formula has a `'` before it, which makes it text there, and
        control characters are spelled out, since one can begin another row. No name out of Python has either.

        Source:
            OWASP, "CSV Injection".
        """
        frame = self.to_frame()
        names = frame.select_dtypes(["object", "string"]).columns
        frame[names] = frame[names].map(_as_text)
        frame.to_csv(path, index=False)

    def write_html(self, path: str | PathLike[str]) -> None:
        """Write the page to `path`, replacing what is there."""
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def write_markdown(self, path: str | PathLike[str]) -> None:
        """Write the Markdown to `path`, replacing what is there."""
        Path(path).write_text(self.to_markdown(), encoding="utf-8")

    def __str__(self) -> str:
        """Return the terminal text without colours, `text_width` columns wide."""
        return plain_text(self.__rich__(), self.text_width)


def _as_text(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = phrases.shown(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
