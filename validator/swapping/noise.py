"""What rounding alone would do to a metric: the reference's code, run under stochastic rounding.

A healthy candidate is one more such run (`checks.propagation`, which says what is rounded how), so that what
noise explains is a bound on the next value after those that were seen. Stochastic rounding has about twice
the variance of rounding to nearest: the bound is wide by that.

Shape legend: K = runs, N = positions.
"""

import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from validator.capturing.values import rebuild
from validator.checks.propagation import FEWEST_RUNS, Propagation
from validator.checks.shadow import ShadowTensor
from validator.errors import MismatchError, TargetError
from validator.numerics.bands import ALPHA, normal_lambda
from validator.numerics.recipes import Recipe
from validator.numerics.shrinkage import shrunk_sigma
from validator.swapping.logits import Logits, root_calls, stitched
from validator.swapping.metrics import Kind, Scale

__all__ = ["explained", "next_count", "next_size", "noisy_runs"]


def noisy_runs(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    recipe: Recipe,
    dtype: torch.dtype | None,
    runs: int = FEWEST_RUNS,
) -> list[Logits] | None:
    """Run the reference as candidates that round at random.

    Args:
        model: the reference, on the CPU.
        run: feeds it.
        recipe: what a candidate may round.
        dtype: a candidate's, None for the reference's own.
        runs: how many.

    Returns:
        The logits of each run; None where the model's code can't run so.
    """
    seen: list[list[tuple[Mapping[str, Any], Any]]] = []
    with tempfile.TemporaryDirectory(prefix="validator-") as folder:
        try:
            with Propagation(
                model=model,
                run=lambda: seen.append(root_calls(model, run)),
                recipe=recipe,
                dtype=dtype,
                runs=runs,
                keeps=lambda module, call: False,
                folder=Path(folder),
            ):
                pass
        except TargetError:
            return None
    try:
        noisy = [[(_plain(given), _plain(output)) for given, output in calls] for calls in seen[1:]]
        return [stitched(calls) for calls in noisy]
    except (MismatchError, _UnknownNoiseError):
        return None


def explained(scale: Scale, runs: Sequence[Logits]) -> float:
    """Return the value of the metric up to which noise explains it, in one of 1000 healthy candidates more.

    Args:
        scale: the metric.
        runs: K runs that noise alone tells from the reference's.

    Source:
        Flips: a Poisson count whose mean is known from the sum of K others, which is negative binomial
        (Jeffreys' prior). A token: lambda standard deviations of its margin, NUMERICS section 7, those of a
        few runs being shrunk towards all positions'. Otherwise the prediction interval of Student's t for the
        next of K + 1 values, of their logarithms where they are positive by definition.
    """
    kind = scale.metric.kind
    if kind is Kind.TOKEN:
        return _of_margin(scale.margin_errors(runs), scale.row)
    values = [scale.value(run) for run in runs]
    if kind is Kind.FLIPS:
        return next_count([int(value) for value in values])
    return next_size(values, is_positive=kind is not Kind.PERPLEXITY)


def next_size(values: Sequence[float], *, is_positive: bool, alpha: float = ALPHA) -> float:
    """Bound the size of the next value after some that differ at random.

    Args:
        values: two or more.
        is_positive: whether they vary by factors, being sizes; otherwise they may have either sign.
        alpha: probability that the next one is larger.
    """
    logarithms = is_positive and all(0 < value < math.inf for value in values)
    numbers = torch.tensor(values, dtype=torch.float64)
    if not bool(numbers.isfinite().all()):
        return math.inf
    numbers = numbers.log() if logarithms else numbers
    sides = 1 if is_positive else 2
    spread = _quantile(alpha / sides, len(values)) * float(numbers.std())
    if logarithms:
        return math.exp(float(numbers.mean()) + spread)
    return abs(float(numbers.mean())) + spread


def next_count(counts: Sequence[int], *, alpha: float = ALPHA) -> float:
    """Bound the next count after some of the same mean: it is greater with a probability of at most alpha."""
    runs = len(counts)
    return float(stats.nbinom.isf(alpha, sum(counts) + 0.5, runs / (runs + 1)))


@functools.cache
def _quantile(alpha: float, values: int) -> float:
    """Return how many standard deviations above its mean the next of `values` + 1 lies with `alpha`."""
    return float(stats.t.ppf(1 - alpha, values - 1)) * math.sqrt(1 + 1 / values)


def _of_margin(errors: Tensor, row: int) -> float:
    """Return how far noise may move one of `[K, N]` margins; where no run measured it, as at the others."""
    runs, positions = errors.shape
    squares = errors.square()
    variance = squares.nanmean(dim=0)
    variance = torch.where(variance.isnan(), squares.nanmean(), variance)
    sigma = shrunk_sigma(variance, torch.ones_like(variance), runs)
    return normal_lambda(positions) * float(sigma[row])


class _UnknownNoiseError(Exception):
    """Behind an operator of whose rounding nothing is known."""


def _plain(value: Any) -> Any:
    def take(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, ShadowTensor):
            return leaf
        if leaf.unknown:
            raise _UnknownNoiseError
        return leaf.data64.to(leaf.dtype)

    return rebuild(value, take)
