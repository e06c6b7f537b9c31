"""The distribution that a token is drawn from, and what noise may do at the edges of top-k and top-p."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.errors import UsageError
from validator.scoring.sampling import GREEDY, Sampling, could_keep, processed, shared_noise

P = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03], dtype=torch.float64)


def kept(scores: torch.Tensor) -> list[int]:
    return (scores > -torch.inf).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1.0, top_p=0.5), [0]),
        (Sampling(temperature=1.0, top_p=0.51), [0, 1]),
        (Sampling(temperature=1.0, top_p=0.9), [0, 1, 2]),
        (Sampling(temperature=1.0, top_p=1.0), [0, 1, 2, 3, 4]),
        (Sampling(temperature=1.0, top_p=1.0, top_k=2), [0, 1]),
        # Of the three that top-k keeps, the first holds 0.5/0.9 of the probability, and two hold 0.75/0.9.
        (Sampling(temperature=1.0, top_p=0.8, top_k=3), [0, 1]),
        # At temperature 1/2 probabilities are squared: the first then has 0.25/0.3433.
        (Sampling(temperature=0.5, top_p=0.72), [0]),
        (Sampling(temperature=0.5, top_p=0.74), [0, 1]),
    ],
    ids=str,
)
def test_the_fewest_tokens_that_hold_the_probability_are_kept_after_the_temperature(
    sampling: Sampling, expected: list[int]
) -> None:
    assert kept(processed(P.log(), sampling)) == expected


def test_a_greedy_choice_keeps_the_logits() -> None:
    assert torch.equal(processed(P.log(), GREEDY), P.log())


def test_tokens_that_are_equally_probable_at_the_edge_are_kept_together() -> None:
    logits = torch.tensor([0.4, 0.2, 0.2, 0.2], dtype=torch.float64).log()
    assert kept(processed(logits, Sampling(temperature=1.0, top_p=0.5))) == [0, 1, 2, 3]
    assert kept(processed(logits, Sampling(temperature=1.0, top_p=1.0, top_k=2))) == [0, 1, 2, 3]


@given(
    seed=st.integers(0, 2**32),
    top_p=st.floats(0.05, 0.99),
    top_k=st.none() | st.integers(1, 20),
    temperature=st.floats(0.2, 3.0),
)
def test_without_noise_only_what_is_kept_may_be_kept(
    seed: int, top_p: float, top_k: int | None, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    scores = processed(logits, sampling)
    for token in range(20):
        may = could_keep(logits, token, sampling, lam=0.0, slack=1e-12)
        is_kept = bool(scores[token] > -torch.inf)
        assert may.may_keep or not is_kept
        assert may.may_cut or is_kept


@given(seed=st.integers(0, 2**32), top_k=st.none() | st.integers(1, 20))
def test_what_noise_makes_of_the_edges_is_what_it_may_make(seed: int, top_k: int | None) -> None:
    sampling = Sampling(temperature=0.7, top_k=top_k, top_p=0.9)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(20, generator=generator, dtype=torch.float64) * 2
    sigma = torch.full((20,), 0.02, dtype=torch.float64)
    noise = (torch.randn(20, generator=generator, dtype=torch.float64)).clamp(-4, 4) * sigma
    scores = processed(logits + noise, sampling)
    for token in range(20):
        may = could_keep(logits, token, sampling, sigma=sigma, lam=6.0)
        assert may.may_keep if scores[token] > -torch.inf else may.may_cut


def test_a_token_far_below_the_edge_may_not_be_kept_whatever_noise_does() -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9)
    may = could_keep(P.log(), 4, sampling, sigma=0.01, lam=5.0)
    assert (may.may_keep, may.may_cut) == (False, True)


def test_the_noise_of_a_step_is_its_own_and_that_of_greedy_is_none() -> None:
    sampling = Sampling(seed=3)
    first = shared_noise(sampling, sequences=2, step=0, vocabulary=8)
    assert torch.equal(first, shared_noise(sampling, sequences=2, step=0, vocabulary=8))
    assert not torch.equal(first, shared_noise(sampling, sequences=2, step=1, vocabulary=8))
    assert not torch.equal(first[0], first[1])
    assert not shared_noise(GREEDY, sequences=2, step=0, vocabulary=8).any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
        ({"top_p": 1.1}, r"top_p is 1\.1"),
    ],
)
def test_what_is_not_legal_is_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Sampling(**options)
