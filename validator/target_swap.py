"""`validator bisect --swap` on a target: hybrids of its two models, or its candidate's options."""

from pathlib import Path

from validator.errors import UsageError
from validator.progress import Progress
from validator.report.swaps import SwapResult
from validator.swapping.module_swaps import swap_modules
from validator.swapping.option_swaps import swap_options

__all__ = ["swap_target"]


def swap_target(
    source: str,
    *,
    is_asked: bool = True,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    metric: str | None = None,
    limit: float | None = None,
    options: Path | None = None,
    module: str | None = None,
    recipe: str | None = None,
    plant: str | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
    **unused: Path | None,
) -> SwapResult:
    """Find the modules, or the options, that explain how far a candidate is from the reference.

    Args:
        source: a Python file or a checkpoint folder.
        is_asked: whether the user asked for a swap; options imply it, a metric or a limit does not.
        nproc: ranks to launch the candidate on; more than one with `options` alone.
        device: of the candidate, like the next two.
        dtype: of the candidate.
        tp: of the candidate.
        metric: `kl` (default), `kl-max`, `perplexity`, `flips` or `token:POSITION`.
        limit: what a set has to show, in the metric's unit.
        options: file that names switches of the candidate, to search among them and not among modules.
        module: a glob; only modules of these names, in the reference's words, are swapped.
        recipe: what the device may round; it says what noise explains.
        plant: a fault to plant in the candidate first.
        timeout_s: seconds that a run of the candidate may take, with `options`.
        progress: told how many runs there were.
        unused: options of the command that have no meaning here, by name.

    Raises:
        UsageError: options that contradict each other.
        ValidatorError: the two sides can't be compared.
    """
    if not is_asked and options is None:
        name = f"--metric {metric}" if metric is not None else f"--limit {limit}"
        raise UsageError(f"{name} says what a swap is measured by: add --swap, or --options FILE")
    given = next((name for name, value in unused.items() if value is not None), None)
    if given is not None:
        raise UsageError(f"--{given} is about captures, and --swap runs hybrids: leave it out")
    if options is not None and module is not None:
        raise UsageError(f"--module {module} chooses among modules, and --options among switches: give one")
    if options is None and timeout_s is not None:
        raise UsageError("--timeout ends processes, and --swap runs in this one: leave it out")
    if options is None:
        return SwapResult(
            swap_modules(
                source,
                nproc=nproc,
                device=device,
                dtype=dtype,
                tp=tp,
                metric=metric or "kl",
                limit=limit,
                module=module,
                recipe=recipe,
                plant=plant,
                progress=progress,
            )
        )
    return SwapResult(
        swap_options(
            source,
            options,
            nproc=nproc,
            device=device,
            dtype=dtype,
            tp=tp,
            metric=metric or "kl",
            limit=limit,
            recipe=recipe,
            plant=plant,
            timeout_s=timeout_s,
            progress=progress,
        )
    )
