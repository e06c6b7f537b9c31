"""The files that a command writes its result to, besides stdout."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validator.commands.running import Paths, clear, write_json, writing
from validator.terminal import show

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

    def clear(self, *, read: Paths, folders: Paths | None = None) -> None:
        """Find out before the work which of them can't be written, and leave no older result in them.

        Args:
            read: what the command reads, by its name, and must not overwrite.
            folders: what it writes besides, by option.

        Raises:
            UsageError: one can't be written, or two are one file.
        """
        files = {"--json": self.json, "--html": self.html, "--csv": self.csv, "--markdown": self.markdown}
        clear(files, read=read, folders=folders)

    def hand_out(self, result: "Shown") -> None:
        """Show the result on stdout, unless JSON goes there, and write it to each of the files.

        Raises:
            UsageError: one can't be written any more. By then the result was shown.
        """
        if self.json != "-":
            show(result)
        for option, path, write in (
            ("--html", self.html, result.write_html),
            ("--csv", self.csv, result.write_csv),
            ("--markdown", self.markdown, result.write_markdown),
        ):
            if path is not None:
                with writing(option, path, begun=True):
                    write(path)
        if self.json is not None:
            write_json(self.json, result.to_json())
