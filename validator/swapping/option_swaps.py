"""Find the switches of a candidate that explain how far it is from the reference."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from validator.checks.findings import Verdict
from validator.errors import UsageError
from validator.faults import parse
from validator.progress import Progress
from validator.runs import feed
from validator.swapping.judgement import allowed_recipe, judged_swap, noise_of
from validator.swapping.limits import check_limit
from validator.swapping.logits import logits_of, positions_of
from validator.swapping.metrics import Scale, parse_metric
from validator.swapping.option_runs import CandidateRun, Ran, run_candidate
from validator.swapping.options import Switch, environment, read_switches, setting_of
from validator.swapping.records import Level, Swap
from validator.swapping.search import Evaluations, find_smallest
from validator.target import Target, load_target

__all__ = ["swap_options"]


def swap_options(
    source: str,
    options: Path,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    metric: str = "kl",
    limit: float | None = None,
    recipe: str | None = None,
    plant: str | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> Swap:
    """Find a smallest set of a candidate's switches that explains how far it is from the reference.

    Each set is a run in processes of its own. The reference is built here, with the variables that the
    switches set as they are when off.

    Args:
        source: a Python file; a checkpoint folder has variables only.
        options: the file that `options.read_switches` reads.
        nproc: ranks to launch the candidate on.
        device: of the candidate, like the next two.
        dtype: of the candidate.
        tp: of the candidate.
        metric: as for `swap_modules`, like the next three.
        limit: as there.
        recipe: as there.
        plant: as there.
        timeout_s: seconds that a run of the candidate may take.
        progress: told how many sets have run.

    Raises:
        ValidatorError: the file is not legal, or the two sides can't be compared.
    """
    tell = progress or (lambda stage, done, total: None)
    asked, planned = parse_metric(metric), None if plant is None else parse(plant)
    check_limit(limit)
    switches = read_switches(options)
    names = tuple(switch.name for switch in switches)
    how = CandidateRun(
        source=source, nproc=nproc, device=device, dtype=dtype, tp=tp, plant=plant, timeout_s=timeout_s
    )
    runs: dict[frozenset[str], Ran] = {}

    def ran(chosen: frozenset[str]) -> Ran:
        if chosen not in runs:
            tell("options", len(runs), 0)
            runs[chosen] = run_candidate(how, setting_of(switches, chosen))
        return runs[chosen]

    with environment(setting_of(switches, ()).variables), torch.no_grad():
        target = load_target(source, device=device, dtype=dtype, tp=tp)
        target.require("candidate")
        _check_arguments(target, options, switches)
        ref, inputs = target.reference(), target.inputs()

        def run_ref() -> Any:
            return feed(target, inputs, ref)

        ours, theirs = logits_of(ref, run_ref), ran(frozenset(names))
        scale = Scale(asked, ref=ours, cand=theirs.logits, positions=positions_of(ours, theirs.logits))
        noise = noise_of(scale, ref, run_ref, allowed_recipe(recipe, target), theirs.weights, tell)
    baseline = scale.value(ran(frozenset()).logits)
    swap = judged_swap(
        source, scale, candidate=scale.value(theirs.logits), baseline=baseline, noise=noise, limit=limit
    )
    swap = replace(swap, notes=(*(() if planned is None else (planned.note,)), *swap.notes))
    if swap.verdict is Verdict.ALIGNED or swap.limit is None:
        return swap
    values = Evaluations[str](lambda chosen: scale.value(ran(chosen).logits))
    found = find_smallest(names, values, limit=swap.limit)
    assert found is not None  # the whole reaches it, and its run is the one that was judged
    return replace(swap, levels=(Level(name="options", tried=names, found=found, runs=values.runs),))


def _check_arguments(target: Target, path: Path, switches: Sequence[Switch]) -> None:
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(target.functions["candidate"]).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for switch in switches:
        if switch.place == "argument" and switch.key not in parameters:
            raise UsageError(
                f"{path}: [{switch.name}] sets the argument {switch.key!r}, and candidate() of "
                f"{target.source} takes {', '.join(parameters) or 'none'}. Write "
                f"`def candidate({switch.key}=...)`, or name another argument"
            )
