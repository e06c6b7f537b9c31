"""The command `validator`.

Exit codes: 0 aligned, 1 divergent or undeclared precision, 2 could not compare, 3 inconclusive;
70 (`EX_SOFTWARE`) for a bug of ours, so that it is never taken for a verdict, and 130 when interrupted.
Results go to stdout; logs, progress, errors and whatever a target prints go to stderr.

Nothing heavy is imported until a command runs: `validator --help` needs no torch.
"""

import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from validator.errors import UsageError, ValidatorError
from validator.terminal import progress_bars, show, target_output_on_stderr, write_stdout

__all__ = ["app", "main"]

EXIT_NOT_COMPARED = 2
EXIT_BUG = 70
_SIDES = ("reference", "candidate")

app = typer.Typer(
    help="Find the first operator of a ported or sharded model that rounding can't explain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Nproc = Annotated[int, typer.Option("--nproc", min=1, metavar="N", help="Ranks to launch the candidate on.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="D", help="The candidate's device, such as cuda.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="T", help="The candidate's dtype, such as bfloat16.")
]
TensorParallel = Annotated[
    int | None,
    typer.Option("--tp", min=1, metavar="N", help="Tensor-parallel size, for a checkpoint folder."),
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Only modules of these names; may be repeated."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="No modules of these names; may be repeated."),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe", metavar="R", help="What the device may round: fused, eager, tf32, bf16-partials, ..."
    ),
]
Plant = Annotated[
    str | None,
    typer.Option(
        "--plant",
        metavar="FAULT",
        help="Plant a fault in the candidate first, such as attn-scale:layer=3; see `validator faults`.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=1, metavar="SECONDS", help="Give up on a run that takes longer."),
]


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    app(args=args, prog_name="validator")
    sys.exit(0)


def _show_version(value: bool) -> None:
    if value:
        write_stdout(f"validator {metadata.version('accuracy-validator')}\n")
        raise typer.Exit


@app.callback()
def _validator(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Find the first operator of a ported or sharded model that rounding can't explain."""


@app.command()
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Python file with reference, candidate and inputs; or a checkpoint."
        ),
    ],
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    recipe: RecipeName = None,
    include: Include = None,
    exclude: Exclude = None,
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="NAME", help="Judge this capture; run no candidate.")
    ] = None,
    json_path: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout, without text."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep the candidate's capture here.")
    ] = None,
    timeout: Timeout = None,
    plant: Plant = None,
) -> None:
    """Judge every edge of the candidate against the float64 oracle.

    Loading a target runs its code. Exit codes: 0 aligned, 1 divergent or undeclared precision,
    2 could not compare, 3 inconclusive.
    """
    if json_path not in (None, "-"):
        with _one_message():
            _clear("--json", Path(json_path), {"the target": target})
    with _one_message(json_path):
        with target_output_on_stderr(), progress_bars() as progress:
            from validator.api import check_target

            result = check_target(
                target,
                nproc=nproc,
                device=device,
                dtype=dtype,
                tp=tp,
                recipe=recipe,
                include=tuple(include or ()),
                exclude=tuple(exclude or ()),
                capture=capture,
                keep=keep,
                timeout_s=timeout,
                plant=plant,
                progress=progress,
            )
        if json_path is not None:
            _write_json(json_path, result.to_json())
        if json_path != "-":
            show(result)
    raise typer.Exit(result.exit_code)


@app.command()
def capture(
    target: Annotated[
        str, typer.Argument(metavar="TARGET[:SIDE]", help="Target; SIDE is candidate (default) or reference.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="NAME", help="Folder, or an .h5 file for one rank.")
    ],
    nproc: Nproc = 1,
    device: Device = None,
    dtype: Dtype = None,
    tp: TensorParallel = None,
    include: Include = None,
    exclude: Exclude = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a capture of that name.")] = False,
    no_proof: Annotated[
        bool, typer.Option("--no-proof", help="Don't run again to prove that looking changed nothing.")
    ] = False,
    timeout: Timeout = None,
    recipe: RecipeName = None,
    noise: Annotated[
        int | None,
        typer.Option(
            "--noise",
            metavar="K",
            help="With the reference: store what rounding carries to each tensor of a candidate of --dtype, "
            "measured by K stochastic runs (8 to 16), so that compare can judge.",
        ),
    ] = None,
    plant: Plant = None,
) -> None:
    """Run one side of a target and store it."""
    with _one_message():
        source, side = _split_side(target)
        with target_output_on_stderr():
            from validator.api import capture_target

            path = capture_target(
                source,
                side,
                output,
                nproc=nproc,
                device=device,
                dtype=dtype,
                tp=tp,
                include=tuple(include or ()),
                exclude=tuple(exclude or ()),
                overwrite=overwrite,
                proof=not no_proof,
                timeout_s=timeout,
                recipe=recipe,
                noise=noise,
                plant=plant,
            )
    write_stdout(f"{path}\n")


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The reference's capture.")],
    candidate: Annotated[Path, typer.Argument(metavar="B", help="The candidate's capture.")],
    json_path: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout, without text."),
    ] = None,
    csv_path: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the figures, one row a tensor.")
    ] = None,
) -> None:
    """Measure every tensor of two captures against each other, without a model.

    Exit codes: 0 aligned, 1 divergent, 2 could not compare, 3 inconclusive. Where they differ only noise
    in A says whether rounding explains it: capture --noise.
    """
    captures = {"the reference's capture": reference, "the candidate's capture": candidate}
    with _one_message():
        if json_path not in (None, "-"):
            _clear("--json", Path(json_path), captures)
        if csv_path is not None:
            _clear("--csv", csv_path, captures)
    with _one_message(json_path):
        from validator.api import compare as compare_captures

        result = compare_captures(ref=reference, cand=candidate)
        if json_path is not None:
            _write_json(json_path, result.to_json())
        if csv_path is not None:
            with _writing("--csv", csv_path):
                result.to_frame().to_csv(csv_path, index=False)
        if json_path != "-":
            show(result)
    raise typer.Exit(result.exit_code)


@app.command()
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
    json_path: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout, without text."),
    ] = None,
    timeout: Timeout = 600,
) -> None:
    """Exercise one operator family with inputs on which its faults show.

    Running a probe runs its code. Exit codes: 0 every answer is right, 1 one is wrong, 2 could not run,
    3 something could not be checked.
    """
    if list_probes:
        with _one_message():
            from validator.probing.probe import list_probes as shipped
            from validator.report.probes import probes_table

            show(probes_table(shipped()))
        return
    if json_path not in (None, "-"):
        with _one_message():
            _clear("--json", Path(json_path), {} if name is None else {"the probe": name})
    with _one_message(json_path):
        if name is None:
            raise UsageError("name a probe; `validator probe --list` lists those that ship")
        with target_output_on_stderr():
            from validator.probing.probe import run_probe
            from validator.report.probes import ProbeResult

            outcome = run_probe(name, nproc=nproc, device=device, repeat=repeat, timeout_s=timeout)
            result = ProbeResult(outcome)
        if json_path is not None:
            _write_json(json_path, result.to_json())
        if json_path != "-":
            show(result)
    raise typer.Exit(result.exit_code)


@app.command()
def faults() -> None:
    """List the faults that check --plant can plant."""
    with _one_message():
        from validator.report.faults import faults_table

        show(faults_table())


@app.command()
def demo() -> None:
    """Check a healthy and a faulty port."""
    with _one_message():
        from rich.console import Console

        from validator.demo import run_demo

        succeeded = run_demo(Console())
    if not succeeded:
        typer.echo("error: the demo did not find what it planted; please report what it printed", err=True)
        raise typer.Exit(EXIT_BUG)


def _split_side(target: str) -> tuple[str, str]:
    """Split `port.py:reference` into path and side; a path may hold colons of its own."""
    source, colon, side = target.rpartition(":")
    if not colon or Path(target).exists():
        return target, "candidate"
    if side in _SIDES:
        return source, side
    if Path(source).exists():
        raise UsageError(f"no side {side!r} in {target!r}: write {source}:candidate or {source}:reference")
    return target, "candidate"


@contextmanager
def _one_message(json_path: str | None = None) -> Iterator[None]:
    """End the command with a message on a user's mistake, and with the traceback on a bug of ours.

    Where JSON was asked for, a mistake is written there too. Bugs are caught here because an exception
    that nobody catches makes Python leave with 1, which means divergent.
    """
    try:
        yield
    except ValidatorError as error:
        typer.echo(f"error: {error}", err=True)
        if json_path is not None:
            from validator.report.json_report import error_json

            with suppress(UsageError):  # that the file can't be written any more comes second to the mistake
                _write_json(json_path, error_json(error))
        raise typer.Exit(EXIT_NOT_COMPARED) from None
    except Exception:
        traceback.print_exc()
        raise typer.Exit(EXIT_BUG) from None


def _clear(option: str, path: Path, read: Mapping[str, str | Path]) -> None:
    """Find out before the work that a file can't be written, and leave no older result in it.

    `read` has what the command reads, by its name: no result may take its place.
    """
    with _writing(option, path):
        for name, other in read.items():
            if path.resolve() == Path(other).resolve():
                raise UsageError(f"{option} {str(path)!r} would overwrite {name}; name another file")
        path.write_text("", encoding="utf-8")


def _write_json(json_path: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if json_path == "-":
        write_stdout(text)
    else:
        with _writing("--json", Path(json_path)):
            Path(json_path).write_text(text, encoding="utf-8")


@contextmanager
def _writing(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{option} can't write {str(path)!r}: {error.strerror}; name a file that you may write"
        ) from None
