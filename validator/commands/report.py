"""`validator report`: what is in one capture, or what changed between the results of several runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from validator.commands.files import ResultFiles
from validator.commands.options import CsvFile, JsonFile, MarkdownFile
from validator.commands.running import one_message
from validator.errors import UsageError

if TYPE_CHECKING:
    from validator.report.shown import Shown

__all__ = ["report"]


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="CAPTURE | RESULT.json...", help="A capture, or what check --json wrote."),
    ],
    json_path: JsonFile = None,
    html_path: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write one page (of results with a figure); it opens without a network.",
        ),
    ] = None,
    csv_path: CsvFile = None,
    markdown_path: MarkdownFile = None,
    counts: Annotated[
        bool,
        typer.Option("--counts", help="Read all values of a capture, to count zeros and subnormals."),
    ] = False,
) -> None:
    """Describe one capture by itself, or put the results of several runs side by side.

    Of a capture: the statistics of its tensors, NaN and infinities, and how near they are to the limits of
    their formats. Exit codes: 0 all are numbers, 1 some are not, 2 could not be read, 3 incomplete.

    Of results: what changed from each run to the next. The exit code is that of the last run.
    """
    read = {f"{str(path)!r}, which is to be read": path for path in paths}
    files = ResultFiles(json=json_path, html=html_path, csv=csv_path, markdown=markdown_path)
    with one_message():
        files.clear(read=read)
    with one_message(json_path):
        answer = _answer(paths, counts=counts)
        files.hand_out(answer)
    raise typer.Exit(answer.exit_code)


def _answer(paths: Sequence[Path], *, counts: bool) -> "Shown":
    others = [path for path in paths if path.suffix != ".json" or path.is_dir()]
    if not others:
        if counts:
            raise UsageError("--counts reads the values of a capture, and results hold none; leave it out")
        from validator.report.side_by_side import read_runs

        return read_runs(paths)
    if len(paths) > 1:
        raise UsageError(
            f"report takes one capture, or files NAME.json that check --json wrote: {str(others[0])!r} is no "
            f"such file, and is named beside {len(paths) - 1} more; `validator compare` takes two captures"
        )
    from validator.capturing.reader import open_capture
    from validator.report.capture_ranges import ranges_of
    from validator.report.capture_report import CaptureReport

    return CaptureReport(ranges_of(open_capture(paths[0], allow_incomplete=True), counts=counts))
