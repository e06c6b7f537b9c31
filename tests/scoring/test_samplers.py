"""A port's own sampler, judged on the candidate's own logits."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from validator.scoring.samplers import judge_sampler
from validator.scoring.sampling import Sampling

SAMPLING = Sampling(temperature=0.7, top_k=12, top_p=0.9)
IDS = torch.zeros(1, 1, dtype=torch.int64)


def drawn(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`[64, 40]` logits; in bfloat16 many of a step are equal."""
    return (torch.randn(64, 40, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


def of_transformers(logits: Tensor) -> Tensor:
    scores = TemperatureLogitsWarper(SAMPLING.temperature)(IDS, logits.float())
    scores = TopKLogitsWarper(12)(IDS, scores)
    return TopPLogitsWarper(SAMPLING.top_p)(IDS, scores)


def log_probabilities(logits: Tensor) -> Tensor:
    return of_transformers(logits).log_softmax(-1)


def with_a_reciprocal(logits: Tensor) -> Tensor:
    scores = logits.float() * torch.tensor(1 / SAMPLING.temperature)
    return TopPLogitsWarper(SAMPLING.top_p)(IDS, TopKLogitsWarper(12)(IDS, scores))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sampler", [of_transformers, log_probabilities, with_a_reciprocal])
def test_a_healthy_sampler_passes_with_ties_and_in_its_own_form(
    sampler: Callable[[Tensor], Tensor], dtype: torch.dtype, seed: int
) -> None:
    logits = drawn(seed, dtype)
    assert judge_sampler(logits=logits, scores=sampler(logits), sampling=SAMPLING).problems == ()


def top_p_first(logits: Tensor) -> Tensor:
    scores = TopPLogitsWarper(SAMPLING.top_p)(IDS, TopKLogitsWarper(12)(IDS, logits.float()))
    return scores / SAMPLING.temperature


def no_temperature(logits: Tensor) -> Tensor:
    return TopPLogitsWarper(SAMPLING.top_p)(IDS, TopKLogitsWarper(12)(IDS, logits.float()))


def multiplied(logits: Tensor) -> Tensor:
    scores = TopKLogitsWarper(12)(IDS, logits.float() * SAMPLING.temperature)
    return TopPLogitsWarper(SAMPLING.top_p)(IDS, scores)


def no_top_p(logits: Tensor) -> Tensor:
    return TopKLogitsWarper(12)(IDS, logits.float() / SAMPLING.temperature)


def no_top_k(logits: Tensor) -> Tensor:
    return TopPLogitsWarper(SAMPLING.top_p)(IDS, logits.float() / SAMPLING.temperature)


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        (top_p_first, "top-k and top-p applied before the temperature"),
        (no_temperature, "the temperature not applied"),
        (multiplied, "logits multiplied by the temperature"),
        (no_top_p, "top-p not applied"),
        (no_top_k, "top-k not applied"),
    ],
)
def test_a_wrong_sampler_fails_and_its_fault_is_named(sampler: Callable[[Tensor], Tensor], says: str) -> None:
    logits = drawn(dtype=torch.float32)
    found = judge_sampler(logits=logits, scores=sampler(logits), sampling=SAMPLING)
    assert found.wrong > 0
    assert f"looks like {says}" in found.problems[0]


def test_a_fault_of_no_known_kind_is_a_problem_without_a_guess() -> None:
    logits = drawn(dtype=torch.float32)
    scores = of_transformers(logits)
    scores[:, ::2] += 0.01
    found = judge_sampler(logits=logits, scores=scores, sampling=SAMPLING)
    assert found.looks_like is None
    assert "gives another distribution" in found.problems[0]


def test_scores_that_are_not_numbers_are_wrong() -> None:
    logits = drawn(dtype=torch.float32)
    scores = torch.full_like(logits, torch.nan)
    assert judge_sampler(logits=logits, scores=scores, sampling=SAMPLING).wrong == 64
