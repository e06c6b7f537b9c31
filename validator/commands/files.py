"""The files that a command writes its result to, besides stdout."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validator.commands.running import clear, write_json, writing

if TYPE_CHECKING:
    from validator.report.shown import Shown

__all__ = ["ResultFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFiles:
    """What `--json`, `--html`, `--csv` and `--markdown` name.

    None is not asked for, and `-` as JSON is stdout.
    """

    json: str | None = None
    html: Path | None = None
    csv: Path | None = None
    markdown: Path | None = None

    def clear(self, read: Mapping[str, str | Path]) -> None:
        """Find out before the work which of them can't be written, and leave no older result in them.

        Args:
            read: what the command reads, by its name, and must not overwrite.

        Raises:
            UsageError: one can't be written, or two are one file.
        """
        json = None if self.json in (None, "-") else Path(self.json or "")
        files = {"--json": json, "--html": self.html, "--csv": self.csv, "--markdown": self.markdown}
        for option, path in files.items():
            if path is not None:
                clear(option, path, read)
                read = {**read, f"what {option} writes": path}

    def write(self, result: "Shown") -> None:
        """Write the result to each of them.

        Raises:
            UsageError: one can't be written any more.
        """
        if self.json is not None:
            write_json(self.json, result.to_json())
        if self.html is not None:
            with writing("--html", self.html):
                result.write_html(self.html)
        if self.csv is not None:
            with writing("--csv", self.csv):
                result.to_frame().to_csv(self.csv, index=False)
        if self.markdown is not None:
            with writing("--markdown", self.markdown):
                result.write_markdown(self.markdown)
