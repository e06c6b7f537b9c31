"""Sums over ranks: which ranks' terms are in them, and how often."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.checks.signatures.build import kind, named, signature, values

BIAS = torch.linspace(-3, 3, 32, dtype=torch.float64) + 0.1


def terms(ranks: int) -> dict[int, Tensor]:
    return {rank: values(seed=rank) for rank in range(ranks)}


def total(given: dict[int, Tensor], counts: Sequence[int] = ()) -> Tensor:
    chosen = counts or [1] * len(given)
    return torch.stack([n * given[rank] for rank, n in enumerate(chosen)]).sum(0)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ((1, 0), ("missing_reduction", {"missing": [1], "kept": [0]})),
        ((0, 1), ("missing_reduction", {"missing": [0], "kept": [1]})),
        ((1, 1, 0, 0), ("missing_reduction", {"missing": [2, 3], "kept": [0, 1]})),
        ((1, 2), ("double_reduction", {"repeated": [1], "times": 2})),
        ((2, 2), ("double_reduction", {"factor": 2.0, "reductions": 1})),
        ((1, 2, 0, 1), ("mixed_reduction", {"missing": [2], "kept": [0, 1, 3], "repeated": [1], "times": 2})),
    ],
    ids=str,
)
def test_the_ranks_whose_terms_are_missing_or_repeated_are_named(
    counts: tuple[int, ...], found: tuple[str, dict[str, object]]
) -> None:
    given = terms(len(counts))
    options = {"terms": lambda: given, "world_size": len(counts), "reductions": 1}
    assert named(total(given), total(given, counts), **options) == found


def test_one_ranks_term_is_told_where_no_sum_was_taken_at_all() -> None:
    given = terms(2)
    assert named(total(given), given[1], terms=lambda: given, world_size=2) == (
        "missing_reduction",
        {"missing": [0], "kept": [1]},
    )


def test_a_rank_that_has_its_own_term_alone_says_nothing_of_the_other() -> None:
    given = terms(2)
    found = named(total(given), given[1], terms=lambda: given, world_size=2, ranks=(1,))
    assert found == ("missing_reduction", {"own_term": True})


def test_a_sum_of_no_terms_is_nobodys_own_part() -> None:
    given = terms(2)
    found = named(total(given), torch.zeros_like(given[0]), terms=lambda: given, world_size=2)
    assert found == ("missing_reduction", {"missing": [0, 1], "kept": []})


def test_a_term_without_the_bias_that_the_other_rank_adds() -> None:
    given = terms(2)
    found = named(total(given) + BIAS, given[1], terms=lambda: given, bias=BIAS, world_size=2)
    assert found == ("missing_reduction", {"missing": [0], "kept": [1], "without_bias": True})


def test_a_bias_on_every_rank_is_no_matter_of_the_terms() -> None:
    given = terms(2)
    y = total(given) + BIAS
    assert kind(y, y + BIAS, terms=lambda: given, bias=BIAS, world_size=2, reductions=1) == "bias_per_rank"


@pytest.mark.parametrize("share", [0.5, 0.7, 1.5])
def test_part_of_a_term_is_no_missing_rank(share: float) -> None:
    given = terms(2)
    cand = given[0] + share * given[1]
    found = signature(total(given), cand, terms=lambda: given, world_size=2, reductions=1)
    assert found is None


def test_half_of_the_sum_without_a_sum_over_ranks_is_a_factor() -> None:
    given = terms(2)
    assert named(total(given), total(given) / 2, terms=lambda: given, world_size=2) == (
        "factor",
        {"factor": pytest.approx(0.5, rel=1e-3)},
    )


def test_half_of_the_sum_behind_one_is_a_missing_reduction() -> None:
    y = values()
    found = named(y, y / 2, world_size=2, reductions=1)
    assert found == ("missing_reduction", {"factor": 0.5, "reductions": 1})


def test_another_ranks_term_with_noise_is_not_named() -> None:
    given = terms(2)
    cand = given[0] + 0.05 * values(seed=7)
    assert signature(total(given), cand, terms=lambda: given, world_size=2) is None
