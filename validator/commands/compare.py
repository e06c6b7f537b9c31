"""`validator compare`: two captures, no model needed."""

from pathlib import Path
from typing import Annotated

import typer

from validator.commands.options import JsonFile
from validator.commands.running import clear, one_message, write_json, writing
from validator.terminal import show

__all__ = ["compare"]


def compare(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The reference's capture.")],
    candidate: Annotated[Path, typer.Argument(metavar="B", help="The candidate's capture.")],
    json_path: JsonFile = None,
    csv_path: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the figures, one row a tensor.")
    ] = None,
) -> None:
    """Measure every tensor of two captures against each other, without a model.

    Exit codes: 0 aligned, 1 divergent, 2 could not compare, 3 inconclusive. Where they differ only noise
    in A says whether rounding explains it: capture --noise.
    """
    captures = {"the reference's capture": reference, "the candidate's capture": candidate}
    with one_message():
        if json_path not in (None, "-"):
            clear("--json", Path(json_path), captures)
        if csv_path is not None:
            clear("--csv", csv_path, captures)
    with one_message(json_path):
        from validator.api import compare as compare_captures

        result = compare_captures(ref=reference, cand=candidate)
        if json_path is not None:
            write_json(json_path, result.to_json())
        if csv_path is not None:
            with writing("--csv", csv_path):
                result.to_frame().to_csv(csv_path, index=False)
        if json_path != "-":
            show(result)
    raise typer.Exit(result.exit_code)
