"""The demo: a healthy port and a faulty one, and what a threshold on the error would have said of both."""

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from validator.api import check_target
from validator.capturing.reader import open_capture
from validator.capturing.records import TensorRef
from validator.checkpoint import without_loading_bars
from validator.content import ContentKind, content_path
from validator.errors import UsageError
from validator.report.result import Result
from validator.terminal import progress_bars, target_output_on_stderr

__all__ = ["PLANTED_MODULE", "PLANTED_RANK", "run_demo"]

PLANTED_MODULE = "model.layers.2.mlp.down_proj"
PLANTED_RANK = 1
_WORLD_SIZE = 2
# The tolerance that torch.testing.assert_close has for bfloat16.
_RTOL, _ATOL = 1.6e-2, 1e-5


def run_demo(console: Console) -> bool:
    """Check the shipped healthy port and its faulty twin on two processes, and print what was found.

    Args:
        console: where the results go; progress goes to stderr.

    Returns:
        Whether the healthy port is aligned and the planted fault was named, with module and rank.

    Raises:
        ValidatorError: a port could not be run; transformers, which both need, may not be installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UsageError("the demo needs transformers: pip install 'accuracy-validator[hf]'")
    healthy, faulty = (content_path(ContentKind.EXAMPLES, f"tiny_dense{kind}.py") for kind in ("", "_faulty"))
    with tempfile.TemporaryDirectory(prefix="validator-demo-") as name, _one_thread():
        folder = Path(name)
        console.print(
            "A trained Llama of 0.85 M parameters. The reference is float32 in one process; the candidate is "
            f"bfloat16, tensor-parallel on {_WORLD_SIZE} processes."
        )
        console.print("\n[bold]The healthy port[/bold]")
        aligned = _checked(healthy, folder / "healthy", console)
        console.print(
            f"\n[bold]The same port, but rank {PLANTED_RANK} feeds its half of {PLANTED_MODULE} "
            "activations that are 0.2% too large[/bold]"
        )
        divergent = _checked(faulty, folder / "faulty", console)
        console.print("\n[bold]What a threshold on an error has to tell them apart by[/bold]")
        console.print(_table(folder / "healthy", folder / "faulty", aligned, divergent))
    return aligned.exit_code == 0 and _found(divergent)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: on tensors as small as this model's, more cost more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _found(result: Result) -> bool:
    first = result.first_divergence
    return first is not None and (first.module, first.rank) == (PLANTED_MODULE, PLANTED_RANK)


def _checked(target: Path, keep: Path, console: Console) -> Result:
    """Check a target as the command line does, and print the command and its result."""
    source = os.path.relpath(target) if target.is_relative_to(Path.cwd()) else str(target)
    command = f"$ validator check {source} --nproc {_WORLD_SIZE}"
    console.print(command, style="dim", markup=False, highlight=False, soft_wrap=True)
    with target_output_on_stderr(), progress_bars() as progress, without_loading_bars():
        result = check_target(source, nproc=_WORLD_SIZE, keep=keep, progress=progress)
    console.print(result)
    return result


def _table(healthy: Path, faulty: Path, aligned: Result, divergent: Result) -> Table:
    """Return the figures of both runs side by side, and the two verdicts beneath."""
    table = Table("", "healthy", "faulty", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = [_figures(run) for run in (healthy, faulty)]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    results = (aligned, divergent)
    table.add_row("what validator says", *(str(result.verdict) for result in results), style="bold")
    table.add_row("first divergence", *(escape(_first(result)) for result in results), style="bold")
    return table


def _figures(run: Path) -> dict[str, str]:
    reference, candidate = run / "reference.h5", run / "candidate"
    ref, cand = (_output(capture, "", "logits") for capture in (reference, candidate))
    error = cand - ref
    outside = (error.abs() > _ATOL + _RTOL * ref.abs()).to(torch.float64).mean()
    faulty_ref, faulty_cand = (_output(capture, PLANTED_MODULE, "") for capture in (reference, candidate))
    module_error = (faulty_cand - faulty_ref).norm() / faulty_ref.norm()
    return {
        "cosine similarity of logits": f"{torch.cosine_similarity(ref.ravel(), cand.ravel(), 0):.6f}",
        "relative L2 error of logits": f"{error.norm() / ref.norm():.2%}",
        "largest error of a logit": f"{error.abs().max():.2f}",
        "logits assert_close rejects": f"{outside:.1%}",
        "relative L2 error of down_proj": f"{module_error:.2%}",
    }


def _output(capture: Path, module: str, path: str) -> Tensor:
    """Return what the first call of a module returned, as float64; every rank has all of it."""
    call = next(call for call in open_capture(capture).rank(0).calls if call.module == module)
    value = call.outputs[path]
    if not isinstance(value, TensorRef):
        raise TypeError(f"{capture}: {module!r} returned {value!r}, not a tensor")
    return value.read().to(torch.float64)


def _first(result: Result) -> str:
    first = result.first_divergence
    if first is None:
        return "none"
    return first.module + ("" if first.rank is None else f", rank {first.rank}")
