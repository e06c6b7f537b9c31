"""How far rounding carries the logits of a healthy candidate, from stochastic runs of the reference's code.

A healthy candidate is one more such run (`swapping.noise`): what noise explains bounds the next one.

Shape legend: K = runs, N = positions, V = vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.checks.pairs import noise_lambda
from validator.checks.propagation import FEWEST_RUNS
from validator.long_context.masks import masked_alike
from validator.numerics.bands import normal_lambda
from validator.numerics.recipes import Recipe
from validator.numerics.shrinkage import shrunk_sigma
from validator.swapping.noise import next_size, noisy_runs

__all__ = ["LogitNoise", "logit_noise", "noise_between"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitNoise:
    """The noise of logits.

    Attributes:
        runs: K tensors `[N, V]`, what candidates that round at random have there.
        sigma: `[N, V]` float64, standard deviation of each logit against the others of its position.
        lam: how many standard deviations of a margin noise explains.
        is_heavy: whether the runs' own errors have heavier tails than normal ones, as behind a router.
    """

    runs: tuple[Tensor, ...]
    sigma: Tensor
    lam: float
    is_heavy: bool


def logit_noise(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    recipe: Recipe,
    dtype: torch.dtype | None,
    runs: int = FEWEST_RUNS,
) -> tuple[Tensor, ...] | None:
    """Run the reference as candidates that round at random.

    Args:
        model: the reference, on the CPU.
        run: feeds it, in one call.
        recipe: what a candidate may round.
        dtype: a candidate's, None for the reference's own.
        runs: how many.

    Returns:
        K logits `[B, S, V]`; None where the model's code can't run so.
    """
    found = noisy_runs(model, run, recipe=recipe, dtype=dtype, runs=runs)
    return None if found is None else tuple(each.values for each in found)


def noise_between(ref: Tensor, runs: Sequence[Tensor]) -> LogitNoise:
    """Return the noise of logits from those of runs.

    Args:
        ref: `[N, V]` the reference's.
        runs: K tensors `[N, V]`, two or more.

    Source:
        Sigma: root mean square error of the runs, shrunk towards that of the position's other logits
        (NUMERICS section 4). Lambda: the prediction interval for the largest margin of the next run, in units
        of the other runs' sigma, as each of these runs' is; `normal_lambda` at least. So it is wide where
        rounding may change a choice inside of the model, which few runs do at any one position.
    """
    wide = ref.to(torch.float64)
    squares = torch.zeros_like(wide)
    for each in runs:
        squares += _error(each, wide).square()
    unit = torch.ones_like(wide)
    sigma = shrunk_sigma(squares / len(runs), unit, len(runs))
    best = wide.topk(min(2, wide.shape[-1]), dim=-1).indices
    farthest = []
    for each in runs:
        error = _error(each, wide)
        others = shrunk_sigma((squares - error.square()).clamp_min(0) / (len(runs) - 1), unit, len(runs) - 1)
        pair, spread = error.gather(-1, best), others.gather(-1, best)
        apart = (pair[:, 0] - pair[:, -1]).abs() / spread.square().sum(-1).sqrt()
        farthest.append(float(apart.nan_to_num(nan=0.0, posinf=0.0).max()))
    return LogitNoise(
        runs=tuple(runs),
        sigma=sigma,
        lam=max(normal_lambda(len(wide)), next_size(farthest, is_positive=True)),
        is_heavy=max(farthest) > noise_lambda(len(wide), len(runs) - 1),
    )


def _error(run: Tensor, ref: Tensor) -> Tensor:
    """Return `[N, V]` how far a run's logits are from the reference's, up to what is common to a position."""
    values = run.to(torch.float64)
    error = values - ref
    # What rounding does to a mask is no noise of a logit, and would drown that of all others.
    error = error.masked_fill(~error.isfinite() | masked_alike(values, ref), 0.0)
    return error - error.mean(-1, keepdim=True)
