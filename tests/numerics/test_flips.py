import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, poisson_binom

from validator.numerics.flips import (
    FlippedToken,
    flip_sigmas,
    judge_flips,
    overtaking_probability,
    poisson_binomial_sf,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(-1, 10))
def test_the_tail_agrees_with_adding_up_all_outcomes(probabilities: list[float], count: int) -> None:
    expected = sum(
        math.prod(p if hit else 1 - p for p, hit in zip(probabilities, outcome, strict=True))
        for outcome in itertools.product((False, True), repeat=len(probabilities))
        if sum(outcome) >= count
    )
    assert poisson_binomial_sf(tensor(*probabilities), count) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("trials", [2, 3, 127, 128, 129, 1000])
def test_the_tail_agrees_with_scipy_for_unequal_probabilities(trials: int) -> None:
    probabilities = (
        torch.rand(trials, dtype=torch.float64, generator=torch.Generator().manual_seed(trials)) ** 4
    )
    exact = poisson_binom(probabilities.numpy())
    for count in range(1, trials + 1, max(1, trials // 20)):
        assert poisson_binomial_sf(probabilities, count) == pytest.approx(exact.sf(count - 1), abs=1e-12)


def test_the_tail_agrees_with_the_binomial_for_many_equal_trials() -> None:
    probabilities = torch.full((100_000,), 1e-3, dtype=torch.float64)
    for count in (50, 100, 130, 160):
        assert poisson_binomial_sf(probabilities, count) == pytest.approx(
            binom.sf(count - 1, 100_000, 1e-3), abs=1e-11
        )


def test_the_tail_ends_where_it_must() -> None:
    assert poisson_binomial_sf(tensor(0.5, 0.5), 0) == 1.0
    assert poisson_binomial_sf(tensor(0.5, 0.5), 3) == 0.0
    assert poisson_binomial_sf(tensor(), 0) == 1.0
    assert poisson_binomial_sf(tensor(), 1) == 0.0
    assert poisson_binomial_sf(tensor(0.0, 0.0, 0.0), 1) == pytest.approx(0.0, abs=1e-15)


def test_a_flip_is_measured_by_the_margin_that_it_overcame_and_not_by_the_runner_ups() -> None:
    ref = tensor(5.0, 4.9, 1.0).expand(3, 3)
    variance = torch.full((3, 3), 0.02, dtype=torch.float64)
    sigmas = flip_sigmas(
        ref=ref, variance=variance, choice_ref=torch.tensor([0, 0, 0]), choice_cand=torch.tensor([0, 1, 2])
    )
    # sqrt(0.02 + 0.02) = 0.2
    assert sigmas.tolist() == pytest.approx([0.0, 0.5, 20.0])


def test_a_tie_needs_no_noise_and_a_masked_token_can_not_be_reached_by_any() -> None:
    ref = tensor(2.0, 2.0, 1.0, -math.inf).expand(3, 4)
    nothing = torch.zeros(3, 4, dtype=torch.float64)
    choice = {"choice_ref": torch.tensor([0, 0, 0]), "choice_cand": torch.tensor([1, 2, 3])}
    assert flip_sigmas(ref=ref, variance=nothing, **choice).tolist() == [0.0, math.inf, math.inf]
    everything = torch.full((3, 4), math.inf, dtype=torch.float64)
    assert flip_sigmas(ref=ref, variance=everything, **choice).tolist() == [0.0, 0.0, math.inf]


def test_the_probability_of_being_overtaken_is_exact_for_one_runner_up() -> None:
    ref, variance = tensor(1.0, 0.0)[None], tensor(0.5, 0.5)[None]
    probability = overtaking_probability(ref=ref, variance=variance, ranked=torch.tensor([[0, 1]]))
    assert float(probability) == pytest.approx(0.5 * math.erfc(1 / math.sqrt(2)), rel=1e-14)
    alone = overtaking_probability(ref=ref[:, :1], variance=variance[:, :1], ranked=torch.tensor([[0]]))
    assert float(alone) == 0.0


def test_the_probability_of_being_overtaken_bounds_what_a_simulation_finds() -> None:
    ref, sigma = tensor(1.0, 0.9, 0.8, 0.8, -1.0), 0.2
    draws = ref + sigma * torch.randn(
        200_000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    overtaken = float((draws.argmax(dim=-1) != 0).double().mean())
    variance = torch.full((1, 5), sigma**2, dtype=torch.float64)
    bound = float(overtaking_probability(ref=ref[None], variance=variance, ranked=torch.arange(5)[None]))
    assert overtaken < bound < overtaken + 0.15
    runner_up_alone = overtaking_probability(ref=ref[None], variance=variance, ranked=torch.tensor([[0, 1]]))
    assert float(runner_up_alone) < overtaken, "the second token alone would expect too few flips"


def test_flips_are_judged_one_by_one_and_together() -> None:
    flips = judge_flips(
        choice_ref=torch.tensor([1, 2, 3, 4]),
        choice_cand=torch.tensor([5, 6, 3, 7]),
        flipped=torch.tensor([True, True, False, True]),
        margin=tensor(0.25, 2.0, 0.0, 0.5),
        sigmas=tensor(1.0, 9.0, 0.0, 3.0),
        probability=tensor(0.25, 0.0, 0.5, 0.25),
        positions=torch.tensor([10, 20, 30, 40]),
        lam=3.0,
        storage_only=False,
    )
    assert (flips.count, flips.explained, flips.expected) == (3, 2, 1.0)
    assert flips.unexplained_positions == (20,)
    assert flips.p_value == pytest.approx(0.25 * 0.25 * 0.5)
    assert flips.tokens == (
        FlippedToken(position=20, ref=2, cand=6, margin=2.0, sigmas=9.0),
        FlippedToken(position=40, ref=4, cand=7, margin=0.5, sigmas=3.0),
        FlippedToken(position=10, ref=1, cand=5, margin=0.25, sigmas=1.0),
    )


def test_the_default_lambda_grows_with_the_number_of_positions() -> None:
    nothing = torch.zeros(2000, dtype=torch.float64)
    flips = judge_flips(
        choice_ref=nothing.long(),
        choice_cand=nothing.long(),
        flipped=nothing > 0,
        margin=nothing,
        sigmas=nothing,
        probability=nothing,
        positions=nothing,
        lam=None,
        storage_only=False,
    )
    assert flips.lam == pytest.approx(math.sqrt(2 * math.log(4e6)))
    assert (flips.count, flips.p_value) == (0, 1.0)
