import math

import pytest
import torch

from validator.errors import UsageError
from validator.swapping.limits import check_limit, default_limit
from validator.swapping.noise import next_count, next_size

RUNS, TRIALS = 8, 1000
ALPHA = 0.02


def binomial_allowance(alpha: float, trials: int) -> float:
    """Five standard deviations above the mean of a count of trials that each exceed with `alpha`."""
    return trials * alpha + 5 * math.sqrt(trials * alpha)


def test_the_next_size_exceeds_its_bound_as_seldom_as_is_promised() -> None:
    draws = torch.randn(TRIALS, RUNS + 1, generator=torch.Generator().manual_seed(0)).mul(0.3).exp()
    beyond = sum(row[-1] > next_size(row[:-1], is_positive=True, alpha=ALPHA) for row in draws.tolist())
    assert 0 < beyond < binomial_allowance(ALPHA, TRIALS)


def test_the_next_signed_value_exceeds_its_bound_as_seldom_as_is_promised() -> None:
    draws = torch.randn(TRIALS, RUNS + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    beyond = sum(
        abs(row[-1]) > next_size(row[:-1], is_positive=False, alpha=ALPHA) for row in (draws + 2).tolist()
    )
    assert 0 < beyond < binomial_allowance(ALPHA, TRIALS)


@pytest.mark.parametrize("mean", [0.2, 3.0, 20.0])
def test_the_next_count_exceeds_its_bound_as_seldom_as_is_promised(mean: float) -> None:
    means = torch.full((TRIALS, RUNS + 1), mean)
    draws = torch.poisson(means, generator=torch.Generator().manual_seed(0)).to(torch.int64)
    beyond = sum(row[-1] > next_count(row[:-1], alpha=ALPHA) for row in draws.tolist())
    assert 0 < beyond < binomial_allowance(ALPHA, TRIALS)


def test_without_any_noise_nothing_is_explained() -> None:
    assert next_size([0.0] * RUNS, is_positive=True) == 0.0
    assert next_size([math.inf] * RUNS, is_positive=True) == math.inf


@pytest.mark.parametrize(
    ("noise", "limit"),
    [
        (0.0, 0.9),  # nine tenths at most
        (0.3, 0.7),  # all that noise does not explain
        (0.8, 0.5),  # half at least
    ],
)
def test_a_set_has_to_show_what_noise_does_not(noise: float, limit: float) -> None:
    assert default_limit(whole=1.0, baseline=0.0, noise=noise) == pytest.approx(limit)


def test_a_baseline_is_shown_anyway() -> None:
    assert default_limit(whole=3.0, baseline=1.0, noise=0.1) == pytest.approx(1.0 + 0.9 * 2.0)
    assert default_limit(whole=math.inf, baseline=1.0, noise=0.1) == math.inf


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_that_says_nothing_is_refused(limit: float) -> None:
    with pytest.raises(UsageError, match="give a positive number"):
        check_limit(limit)
