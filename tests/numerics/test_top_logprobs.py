import json
import math

import pytest
import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.distributions import compare_logits
from validator.numerics.formats import format_of
from validator.numerics.top_lists import TopLogprobs
from validator.numerics.top_logprobs import compare_top_logprobs

POSITIONS, VOCABULARY = 300, 500


def logits_of(seed: int, scale: float = 3.0, positions: int = POSITIONS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(positions, VOCABULARY, dtype=torch.float64, generator=generator)


def top(logits: Tensor, k: int) -> TopLogprobs:
    return TopLogprobs.from_logits(logits, k)


def test_the_whole_list_gives_the_figures_of_the_logits() -> None:
    ref = logits_of(0, positions=40)
    cand = ref + logits_of(1, scale=0.2, positions=40)
    groups = torch.arange(40) // 8
    figures = compare_top_logprobs(
        ref=top(ref, VOCABULARY),
        cand=top(cand, VOCABULARY),
        vocabulary=VOCABULARY,
        groups=groups,
        logit_sigma=0.2,
    )
    known = compare_logits(
        ref=ref, cand=cand, cand_format=format_of("float64"), top_k=VOCABULARY, groups=groups, logit_sigma=0.2
    )
    for bound, truth in (
        (figures.kl_lower, known.kl),
        (figures.kl_upper, known.kl),
        (figures.kl_reverse_upper, known.kl_reverse),
        (figures.total_variation_lower, known.total_variation),
        (figures.total_variation_upper, known.total_variation),
    ):
        assert bound.mean == pytest.approx(truth.mean, rel=1e-9)
        assert bound.max == pytest.approx(truth.max, rel=1e-9)
    assert figures.kl_lower_se == pytest.approx(known.kl_se, rel=1e-8)
    assert figures.kl_noise_floor == pytest.approx(known.kl_noise_floor, rel=1e-9)
    assert figures.top1_agreement == known.top1_agreement
    assert (figures.flips.count, figures.flips.explained) == (known.flips.count, known.flips.explained)
    assert figures.flips.expected == pytest.approx(known.flips.expected, rel=1e-9)
    assert [flip.position for flip in figures.flips.tokens] == [flip.position for flip in known.flips.tokens]
    assert figures.mass_outside_ref.max == pytest.approx(0, abs=1e-12)


def test_different_numbers_of_entries_still_bound_the_truth() -> None:
    ref = logits_of(2)
    cand = ref + logits_of(3, scale=0.3)
    known = compare_logits(ref=ref, cand=cand, cand_format=format_of("float64"))
    figures = compare_top_logprobs(ref=top(ref, 20), cand=top(cand, 5), vocabulary=VOCABULARY)
    assert (figures.listed_ref, figures.listed_cand, figures.top_k) == ((20, 20), (5, 5), 5)
    assert figures.kl_lower.mean <= known.kl.mean <= figures.kl_upper.mean == math.inf
    assert 0 < figures.total_variation_lower.mean <= known.total_variation.mean
    assert known.total_variation.mean <= figures.total_variation_upper.mean < 1
    assert figures.top1_agreement == pytest.approx(known.top1_agreement)
    assert figures.top_k_overlap == pytest.approx(known.top_k_overlap)
    outside = 1 - ref.softmax(-1).topk(20).values.sum(-1)
    assert figures.mass_outside_ref.mean == pytest.approx(float(outside.mean()))


def test_a_healthy_candidate_stays_below_the_noise_floor_and_a_faulty_one_does_not() -> None:
    ref, noise = logits_of(4), logits_of(5, scale=0.02)
    healthy = compare_top_logprobs(ref=top(ref, 20), cand=top(ref + noise, 20), logit_sigma=0.02)
    assert healthy.kl_lower.mean < healthy.kl_noise_floor
    assert healthy.flips.explained == healthy.flips.count
    assert healthy.flips.p_value is not None
    assert healthy.flips.p_value > 1e-3
    faulty = compare_top_logprobs(ref=top(ref, 20), cand=top(1.1 * ref + noise, 20), logit_sigma=0.02)
    assert faulty.kl_lower.mean > 10 * faulty.kl_noise_floor


def test_a_flip_to_a_token_that_is_not_listed_is_judged_by_the_least_margin_it_can_have() -> None:
    ref = TopLogprobs.from_rows([{0: -0.5, 1: -2.5}, {0: -0.7, 1: -0.75}, {0: -0.7, 1: -0.75}])
    cand = TopLogprobs.from_rows([{7: -0.5, 0: -2.5}, {7: -0.7, 0: -0.75}, {1: -0.7, 0: -0.75}])
    figures = compare_top_logprobs(ref=ref, cand=cand, logit_sigma=0.05, lam=4.0)
    assert (figures.flips.count, figures.flips.explained, figures.flips_undecided) == (3, 2, 1)
    assert figures.flips.unexplained_positions == (0,)
    # The margin has the noise of two logits: 2.0 / (sqrt(2) 0.05).
    assert figures.flips.tokens[0].sigmas == pytest.approx(2.0 / (math.sqrt(2) * 0.05))
    assert [flip.margin for flip in figures.flips.tokens] == pytest.approx([2.0, 0.05, 0.05])


def test_without_noise_only_what_the_printing_rounds_explains_a_flip() -> None:
    ref = TopLogprobs.from_rows([{0: -0.7, 1: -0.7}, {0: -0.7, 1: -0.72}], tolerance=1e-3)
    cand = TopLogprobs.from_rows([{1: -0.6999, 0: -0.7001}, {1: -0.7, 0: -0.72}], tolerance=1e-3)
    flips = compare_top_logprobs(ref=ref, cand=cand).flips
    assert (flips.count, flips.explained, flips.p_value) == (2, 1, None)
    assert flips.unexplained_positions == (1,)


def test_figures_are_json_though_the_upper_bound_is_infinite() -> None:
    figures = compare_top_logprobs(ref=top(logits_of(0), 3), cand=top(logits_of(1), 3)).to_json()
    loaded = json.loads(json.dumps(figures, allow_nan=False))
    assert loaded["kl_upper"]["mean"] == "inf"
    assert set(loaded["flips"]["tokens"][0]) == {"position", "ref", "cand", "margin", "sigmas"}


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    one, two = top(logits_of(0, positions=2), 3), top(logits_of(0, positions=3), 3)
    with pytest.raises(ComparisonError, match="ref has 2 positions and cand has 3"):
        compare_top_logprobs(ref=one, cand=two)
    with pytest.raises(ComparisonError, match="none of a vocabulary of 10"):
        compare_top_logprobs(ref=one, cand=one, vocabulary=10)
    with pytest.raises(ComparisonError, match=r"groups is torch\.float32"):
        compare_top_logprobs(ref=one, cand=one, groups=torch.zeros(2))
