"""Find the modules that explain how far a candidate is from the reference, among hybrids of both."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from validator.checks.findings import Verdict
from validator.errors import MismatchError, UsageError
from validator.faults import parse
from validator.numerics.formats import weights_dtype
from validator.progress import Progress
from validator.runs import feed
from validator.swapping.hybrids import Hybrids
from validator.swapping.judgement import allowed_recipe, judged_swap, noise_of
from validator.swapping.limits import check_limit
from validator.swapping.logits import logits_of, positions_of
from validator.swapping.metrics import Scale, parse_metric
from validator.swapping.naming import module_names
from validator.swapping.partition import Part, coarse_parts, finer_parts, matching_parts
from validator.swapping.records import Level, Swap
from validator.swapping.search import Evaluations, Member, SmallestSet, find_smallest
from validator.target import load_target

__all__ = ["swap_modules"]


def swap_modules(
    source: str,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    metric: str = "kl",
    limit: float | None = None,
    module: str | None = None,
    recipe: str | None = None,
    plant: str | None = None,
    progress: Progress | None = None,
) -> Swap:
    """Find a smallest set of modules that explains how far a candidate is from the reference.

    Blocks are told apart first, then the modules inside the blocks that were found, down to single ones.

    Args:
        source: a Python file or a checkpoint folder.
        nproc: 1; models on several ranks can't be mixed.
        device: of the candidate, like the next two.
        dtype: of the candidate.
        tp: of the candidate.
        metric: as `metrics.parse_metric` reads it.
        limit: what a set has to show, in the metric's unit; default `limits.default_limit`, or for a token
            that it flips.
        module: a glob; only modules of these names, in the reference's words, are swapped.
        recipe: what the device may round, which says what noise explains; default the target's own, else
            `eager`, the looser one of those allowed.
        plant: a fault to plant in the candidate first.
        progress: told how many hybrids have run.

    Raises:
        UsageError: an option that is not legal, several ranks among them.
        ValidatorError: the two sides can't be compared.
    """
    if nproc > 1:
        raise UsageError(
            f"--swap puts modules of both sides into one process, and --nproc is {nproc}: run it with a "
            "candidate on one rank, or name switches of the candidate with --options FILE, which works on "
            "several"
        )
    tell = progress or (lambda stage, done, total: None)
    asked, planned = parse_metric(metric), None if plant is None else parse(plant)
    check_limit(limit)
    target = load_target(source, device=device, dtype=dtype, tp=tp)
    target.require("candidate")
    ref, cand, inputs = target.reference(), target.candidate(), target.inputs()
    if planned is not None:
        planned.plant(cand)

    def run(model: nn.Module, side: str) -> Callable[[], Any]:
        return lambda: feed(target, inputs, model, side)

    run_ref, run_cand = run(ref, "reference"), run(cand, "candidate")
    with torch.no_grad():
        ours, theirs = logits_of(ref, run_ref), logits_of(cand, run_cand)
        scale = Scale(asked, ref=ours, cand=theirs, positions=positions_of(ours, theirs))
        names = module_names(ref=ref, cand=cand, patterns=target.names, run_ref=run_ref, run_cand=run_cand)
        hybrids = Hybrids(ref=ref, cand=cand, names=names, run_ref=run_ref, run_cand=run_cand)
        parts = _parts(ref, hybrids, module)
        done = Counter[str]()

        def value(parts: Sequence[Part], chosen: Sequence[Part]) -> float:
            with hybrids.hybrid(parts, chosen) as (model, is_cand):
                measured = scale.value(logits_of(model, run(model, "candidate" if is_cand else "reference")))
            done["hybrids"] += 1
            tell("hybrids", done["hybrids"], 0)
            return measured

        whole = scale.value(theirs) if module is None else value(parts, parts)
        noise = noise_of(scale, ref, run_ref, allowed_recipe(recipe, target), weights_dtype(cand), tell)
        swap = judged_swap(source, scale, candidate=whole, baseline=0.0, noise=noise, limit=limit)
        swap = replace(
            swap,
            unswappable=hybrids.unswappable,
            notes=(*(() if planned is None else (planned.note,)), *_kept_whole(ref, names), *swap.notes),
        )
        if swap.verdict is Verdict.ALIGNED or swap.limit is None:
            return swap
        return replace(swap, levels=tuple(_module_levels(parts, value, hybrids, swap.limit, module)))


def _module_levels(
    parts: tuple[Part, ...],
    value: Callable[[Sequence[Part], Sequence[Part]], float],
    hybrids: Hybrids,
    limit: float,
    module: str | None,
) -> list[Level]:
    levels: list[Level] = []
    while True:
        values = Evaluations[Part](lambda chosen, parts=parts: value(parts, tuple(chosen)))  # type: ignore[misc]
        found = find_smallest(parts, values, limit=limit)
        if found is None or not found.members:
            if not levels:
                raise MismatchError(
                    "runs of one model differ by as much as the two sides do: they are not deterministic, "
                    "and hybrids can't be told apart. Fix the seeds, or the order of sums"
                )
            return levels
        name = "blocks" if module is None and not levels else "modules"
        levels.append(Level(name=name, tried=tuple(map(str, parts)), found=_named(found), runs=values.runs))
        members = [member.item for member in found.members]
        finer = finer_parts(sorted(members, key=parts.index), hybrids.swappable)
        if set(finer) == set(members):
            return levels
        parts = finer


def _kept_whole(ref: nn.Module, names: Mapping[str, str]) -> tuple[str, ...]:
    """Say which modules have none of their own in the candidate, so that they go with the one around them."""
    known = set(names.values())
    alone = [
        name
        for name, module in ref.named_modules()
        if name
        and name not in known
        and name.rpartition(".")[0] in known
        and next(module.parameters(), None) is not None
    ]
    if not alone:
        return ()
    shown = ", ".join(alone[:4]) + (f" and {len(alone) - 4} more" if len(alone) > 4 else "")
    return (
        f"no module of their own in the candidate, which may have fused them, so that they are swapped with "
        f"the module around them: {shown}",
    )


def _named(found: SmallestSet[Part]) -> SmallestSet[str]:
    return SmallestSet(
        members=tuple(
            Member(
                item=str(member.item),
                alone=member.alone,
                lost_from_set=member.lost_from_set,
                lost_from_whole=member.lost_from_whole,
            )
            for member in found.members
        ),
        value=found.value,
        limit=found.limit,
        whole=found.whole,
        none=found.none,
        rest=found.rest,
        is_smallest=found.is_smallest,
    )


def _parts(ref: nn.Module, hybrids: Hybrids, module: str | None) -> tuple[Part, ...]:
    if not hybrids.swappable:
        shown = "; ".join(f"{name}: {why}" for name, why in list(hybrids.unswappable.items())[:3])
        raise MismatchError(
            f"no module of the candidate can take the place of the reference's ({shown or 'none match'}): "
            "say in the target's names which is which, or use --options"
        )
    if module is None:
        return coarse_parts(ref, hybrids.swappable)
    parts = matching_parts(module, hybrids.swappable)
    if parts:
        return parts
    reasons = [f"{name}: {why}" for name, why in hybrids.unswappable.items()]
    raise UsageError(
        f"--module {module!r} matches no module that both sides have and that can be swapped, such as "
        f"{', '.join(hybrids.swappable[:4])}" + (f" ({reasons[0]})" if reasons else "")
    )
