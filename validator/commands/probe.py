"""`validator probe`: one operator family on inputs chosen to expose its faults."""

from typing import Annotated

import typer

from validator.commands.files import ResultFiles
from validator.commands.options import CsvFile, HtmlTables, JsonFile, MarkdownFile, Timeout
from validator.commands.running import one_message
from validator.errors import UsageError
from validator.terminal import show, target_output_on_stderr

__all__ = ["probe"]


def probe(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A shipped probe, or the file of one's own.")
    ] = None,
    list_probes: Annotated[bool, typer.Option("--list", help="List the shipped probes and exit.")] = False,
    nproc: Annotated[
        int | None,
        typer.Option("--nproc", min=1, metavar="N", help="Ranks; default: the fewest that the probe needs."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="D", help="The device whose backend is probed, such as cuda.")
    ] = "cpu",
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, metavar="K", help="How often each case is called.")
    ] = 3,
    json_path: JsonFile = None,
    html_path: HtmlTables = None,
    csv_path: CsvFile = None,
    markdown_path: MarkdownFile = None,
    timeout: Timeout = 600,
) -> None:
    """Exercise one operator family with inputs on which its faults show.

    Running a probe runs its code. Exit codes: 0 every answer is right, 1 one is wrong, 2 could not run,
    3 something could not be checked.
    """
    if list_probes:
        with one_message():
            from validator.probing.probe import list_probes as shipped
            from validator.report.probes import probes_table

            show(probes_table(shipped()))
        return
    files = ResultFiles(json=json_path, html=html_path, csv=csv_path, markdown=markdown_path)
    with one_message():
        files.clear(read={"the probe": name})
    with one_message(json_path):
        if name is None:
            raise UsageError("name a probe; `validator probe --list` lists those that ship")
        with target_output_on_stderr():
            from validator.probing.probe import run_probe
            from validator.report.probes import ProbeResult

            outcome = run_probe(name, nproc=nproc, device=device, repeat=repeat, timeout_s=timeout)
            result = ProbeResult(outcome)
        files.hand_out(result)
    raise typer.Exit(result.exit_code)
