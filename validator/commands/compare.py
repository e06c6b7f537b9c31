"""`validator compare`: two captures, no model needed."""

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.files import ResultFiles
from validator.commands.options import CsvFile, HtmlTables, JsonFile, MarkdownFile
from validator.commands.running import one_message

__all__ = ["compare"]


def compare(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The reference's capture.")],
    candidate: Annotated[Path, typer.Argument(metavar="B", help="The candidate's capture.")],
    json_path: JsonFile = None,
    html_path: HtmlTables = None,
    csv_path: CsvFile = None,
    markdown_path: MarkdownFile = None,
) -> None:
    """Measure every tensor of two captures against each other, without a model.

    Exit codes: 0 aligned, 1 divergent, 2 could not compare, 3 inconclusive. Where they differ only noise
    in A says whether rounding explains it: capture --noise.
    """
    captures = {"the reference's capture": reference, "the candidate's capture": candidate}
    files = ResultFiles(json=json_path, html=html_path, csv=csv_path, markdown=markdown_path)
    with one_message():
        files.clear(read=captures)
    with one_message(json_path):
        from validator.api import compare as compare_captures

        result = compare_captures(ref=reference, cand=candidate)
        files.hand_out(result)
    raise typer.Exit(result.exit_code)
