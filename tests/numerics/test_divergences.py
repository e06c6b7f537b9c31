import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from validator.numerics.divergences import js_divergence, kl_divergence, kl_terms, total_variation


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.to(torch.float64), dim=-1)


def logits_of(seed: int, vocabulary: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def exact_kl(ref: torch.Tensor, cand: torch.Tensor) -> float:
    """KL of two rows of logits by its definition, with 60 digits."""
    with mpmath.workdps(60):
        z, w = ([mpmath.mpf(value) for value in side.tolist()] for side in (ref, cand))
        log_sum_z = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in z))
        log_sum_w = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in w))
        return float(
            mpmath.fsum(
                mpmath.exp(a - log_sum_z) * ((a - log_sum_z) - (b - log_sum_w))
                for a, b in zip(z, w, strict=True)
                if not mpmath.isinf(a)
            )
        )


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-3, 0.03, 0.07, 1.0, 10.0])
def test_kl_agrees_with_sixty_digits_from_tiny_noise_to_great(noise: float) -> None:
    ref = logits_of(0, 200)
    cand = ref + noise * logits_of(1, 200, scale=1.0)
    expected = exact_kl(ref, cand)
    result = float(kl_divergence(log_probabilities(ref), log_probabilities(cand)))
    # Rounding of the log-probabilities (4e-16 * 10) moves t, of size `noise`, and KL is quadratic in t.
    assert result == pytest.approx(expected, rel=1e-13 + 4e-14 / noise)


@pytest.mark.parametrize("scale", [1e4, 1e3])
@pytest.mark.parametrize("noise", [1e-3, 1.0, 100.0])
def test_kl_agrees_with_sixty_digits_for_huge_logits(scale: float, noise: float) -> None:
    ref = logits_of(2, 50).clamp(-1, 1) * scale
    ref[3:6] = ref.max() - torch.tensor([0.0, 0.5, 30.0])  # or one token has all the probability
    cand = ref + noise * logits_of(3, 50, scale=1.0)
    result = float(kl_divergence(log_probabilities(ref), log_probabilities(cand)))
    assert result == pytest.approx(exact_kl(ref, cand), rel=1e-8)


def test_masked_entries_add_nothing_where_the_reference_masks_them() -> None:
    ref, cand = logits_of(4, 40), logits_of(5, 40)
    ref[:7] = -torch.inf
    result = float(kl_divergence(log_probabilities(ref), log_probabilities(cand)))
    assert result == pytest.approx(exact_kl(ref, cand), rel=1e-13)
    cand[:7] = -torch.inf
    both = float(kl_divergence(log_probabilities(ref), log_probabilities(cand)))
    assert both == pytest.approx(exact_kl(ref[7:], cand[7:]), rel=1e-13)


def test_a_token_that_only_the_candidate_masks_is_infinitely_far() -> None:
    ref, cand = logits_of(6, 10), logits_of(6, 10)
    cand[4] = -torch.inf
    assert float(kl_divergence(log_probabilities(ref), log_probabilities(cand))) == math.inf
    assert math.isfinite(float(js_divergence(log_probabilities(ref), log_probabilities(cand))))


def test_a_probability_that_underflows_counts_as_none() -> None:
    ref = torch.tensor([0.0, -800.0], dtype=torch.float64)
    cand = torch.tensor([0.0, -torch.inf], dtype=torch.float64)
    assert float(kl_divergence(log_probabilities(ref), log_probabilities(cand))) == 0.0


def test_nan_stays_nan_and_nothing_to_sum_is_zero() -> None:
    log_p = log_probabilities(logits_of(7, 5))
    broken = log_p.clone()
    broken[2] = torch.nan
    for divergence in (kl_divergence, js_divergence, total_variation):
        assert divergence(log_p, broken).isnan()
        assert divergence(broken, log_p).isnan()
        assert divergence(log_p[:0], log_p[:0]) == 0


def test_all_three_agree_with_scipy_on_moderate_values() -> None:
    log_p, log_q = (
        log_probabilities(torch.stack([logits_of(s, 100) for s in seeds])) for seeds in ((1, 2), (3, 4))
    )
    p, q = log_p.exp().numpy(), log_q.exp().numpy()
    assert kl_divergence(log_p, log_q).numpy() == pytest.approx(rel_entr(p, q).sum(-1), rel=1e-12)
    assert js_divergence(log_p, log_q).numpy() == pytest.approx(jensenshannon(p, q, axis=-1) ** 2, rel=1e-12)
    assert total_variation(log_p, log_q).numpy() == pytest.approx(abs(p - q).sum(-1) / 2, rel=1e-13)


logits = st.lists(
    st.one_of(st.floats(-1e4, 1e4), st.floats(-5, 5), st.just(-math.inf)), min_size=2, max_size=8
).filter(lambda row: max(row) > -math.inf)


@given(st.tuples(logits, logits))
def test_divergences_keep_their_laws_for_any_logits(pair: tuple[list[float], list[float]]) -> None:
    width = min(map(len, pair))
    log_p, log_q = (log_probabilities(torch.tensor([*row[:width], 0.0])) for row in pair)
    kl, js, tv = (f(log_p, log_q) for f in (kl_divergence, js_divergence, total_variation))
    assert kl >= 0
    assert 0 <= js <= math.log(2) * (1 + 1e-14)
    assert 0 <= tv <= 1 + 1e-14
    assert js == pytest.approx(float(js_divergence(log_q, log_p)), rel=1e-12, abs=1e-300)
    assert kl >= 2 * tv**2 * (1 - 1e-9) - 1e-20, "Pinsker's inequality"
    for divergence in (kl_divergence, js_divergence, total_variation):
        assert divergence(log_p, log_p) == pytest.approx(0.0, abs=1e-30)


@given(st.tuples(logits, logits, logits))
def test_total_variation_and_the_root_of_js_are_metrics(rows: tuple[list[float], ...]) -> None:
    width = min(map(len, rows))
    a, b, c = (log_probabilities(torch.tensor([*row[:width], 0.0])) for row in rows)
    assert total_variation(a, c) <= total_variation(a, b) + total_variation(b, c) + 1e-14
    assert total_variation(a, b) == total_variation(b, a)
    # Of a difference below 1e-8 the root is noise: the divergence itself is then below 1e-16.
    assert js_divergence(a, c).sqrt() <= js_divergence(a, b).sqrt() + js_divergence(b, c).sqrt() + 1e-7


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=6))
def test_the_terms_of_kl_are_a_divergence_of_any_positive_numbers(pairs: list[tuple[float, float]]) -> None:
    p, q = torch.tensor(pairs, dtype=torch.float64).T
    terms = kl_terms(p.log(), q.log())
    assert (terms >= 0).all()
    with mpmath.workdps(60):
        for made, (a, b) in zip(terms.tolist(), pairs, strict=True):
            x, y = mpmath.mpf(a), mpmath.mpf(b)
            if a == 0 or b == 0:
                assert made == (math.inf if a else pytest.approx(b, rel=1e-12))
                continue
            exact = float(y - x + x * mpmath.log(x / y))
            # Near equality it is x t^2 / 2, and t is off by the rounding of two logarithms up to 745.
            t = abs(float(mpmath.log(x / y)))
            slack = a * (t + 1e-13) * 2e-13 + b * 2e-13 if t < 1 else 1e-12 * (a + b) * max(t, 1)
            assert made == pytest.approx(exact, rel=1e-9, abs=slack)


@given(st.integers(0, 10_000), st.floats(1e-12, 1e-2))
def test_kl_is_never_negative_at_small_noise_where_the_definition_goes_negative(
    seed: int, noise: float
) -> None:
    ref = logits_of(seed, 30)
    log_p = log_probabilities(ref)
    log_q = log_probabilities(ref + noise * logits_of(seed + 1, 30))
    assert kl_divergence(log_p, log_q) >= 0


def test_the_definition_does_go_negative_at_small_noise() -> None:
    negative = 0
    for seed in range(50):
        log_p = log_probabilities(logits_of(seed, 30))
        log_q = log_probabilities(logits_of(seed, 30) + 1e-9 * logits_of(seed + 1, 30))
        negative += float((log_p.exp() * (log_p - log_q)).sum()) < 0
    assert negative > 0
