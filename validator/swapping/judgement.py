"""Whether noise explains how far a candidate is from the reference, and if not, what a set has to show."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from validator.checks.findings import Verdict
from validator.numerics.formats import weights_dtype
from validator.numerics.recipes import EAGER, Recipe, recipe_named
from validator.progress import Progress
from validator.swapping.limits import default_limit
from validator.swapping.metrics import Scale
from validator.swapping.noise import explained, noisy_runs
from validator.swapping.records import Swap
from validator.target import Target

__all__ = ["allowed_recipe", "judged_swap", "noise_of"]

_UNKNOWN = "the reference's code can't run in simulated arithmetic: what noise explains is not known"


def judged_swap(
    source: str, scale: Scale, *, candidate: float, baseline: float, noise: float | None, limit: float | None
) -> Swap:
    """Say whether there is something to explain, and what value explains it.

    Args:
        source: the target.
        scale: the metric.
        candidate: value of the whole candidate.
        baseline: value of no part.
        noise: the value up to which noise explains it, None where that is not known.
        limit: what a set has to show, if the user says so.
    """
    swap = Swap(
        verdict=Verdict.ALIGNED,
        source=source,
        metric=scale.metric,
        tokens=scale.tokens,
        positions=scale.positions,
        candidate=candidate,
        baseline=baseline,
        noise=noise,
        limit=limit,
    )
    if candidate <= 0:
        return swap
    if noise is None:
        swap = replace(swap, notes=(_UNKNOWN,))
    if noise is not None and candidate <= noise:
        return swap
    if limit is not None and candidate < limit:
        return swap
    verdict = Verdict.INCONCLUSIVE if noise is None and limit is None else Verdict.DIVERGENT
    swap = replace(swap, verdict=verdict)
    if limit is not None:
        return swap
    if scale.flip_limit is not None:
        return replace(swap, limit=scale.flip_limit)
    # A rise that noise explains is none: the baseline reaches the limit, and the set is empty.
    if candidate - baseline <= (noise or 0.0) and baseline > 0:
        return replace(swap, limit=min(baseline, candidate))
    return replace(swap, limit=default_limit(whole=candidate, baseline=baseline, noise=noise or 0.0))


def noise_of(
    scale: Scale,
    ref: nn.Module,
    run_ref: Callable[[], Any],
    recipe: Recipe,
    dtype: torch.dtype | None,
    tell: Progress,
) -> float | None:
    """Return the value up to which noise explains it, or None where that can't be measured.

    Args:
        scale: the metric.
        ref: the reference.
        run_ref: runs it.
        recipe: what the candidate may round.
        dtype: of the candidate's weights.
        tell: told the stage.
    """
    tell("noise", 0, 1)
    own = weights_dtype(ref)
    runs = noisy_runs(ref, run_ref, recipe=recipe, dtype=None if dtype == own else dtype)
    tell("noise", 1, 1)
    return None if runs is None else explained(scale, runs)


def allowed_recipe(name: str | None, target: Target) -> Recipe:
    """Return what the candidate may round: where nothing is declared, the looser recipe of those allowed."""
    return recipe_named(name) or target.recipe or EAGER
