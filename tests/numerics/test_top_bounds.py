import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from validator.numerics.divergences import kl_divergence, total_variation
from validator.numerics.top_bounds import Bounds, kl_bounds, pair_of, total_variation_bounds
from validator.numerics.top_lists import TopLogprobs

ERROR = 1e-12  # of the sums over a distribution, in float64


def log_probabilities(seed: int, positions: int, vocabulary: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(positions, vocabulary, dtype=torch.float64, generator=generator)
    return logits.log_softmax(-1)


def top_of(logprobs: Tensor, k: int, tolerance: float = 0.0, seed: int = 0) -> TopLogprobs:
    """The k greatest, printed with errors of up to the tolerance."""
    greatest = logprobs.topk(k, dim=-1)
    generator = torch.Generator().manual_seed(seed)
    error = 2 * torch.rand(greatest.values.shape, dtype=torch.float64, generator=generator) - 1
    return TopLogprobs(
        tokens=greatest.indices,
        logprobs=greatest.values + tolerance * error,
        # Where tokens are chosen by their exact values the last one may be printed above one before it.
        tolerance=2 * tolerance + 1e-14,
    )


def probabilities(**tokens: float) -> TopLogprobs:
    """One position; `t3=0.5` says that token 3 has probability 0.5."""
    row = {int(name[1:]): math.log(p) if p else -math.inf for name, p in tokens.items()}
    return TopLogprobs.from_rows([row], tolerance=0.0)


def bounds(ref: TopLogprobs, cand: TopLogprobs, vocabulary: int | None = None) -> tuple[Bounds, Bounds]:
    pair = pair_of(ref=ref, cand=cand, vocabulary=vocabulary)
    return kl_bounds(pair), total_variation_bounds(pair)


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.sampled_from([2, 3, 5, 8, 20, 60]),
    listed=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    scale=st.sampled_from([0.3, 1.0, 4.0, 10.0]),
    apart=st.sampled_from([0.0, 1e-3, 0.3, 3.0]),
    tolerance=st.sampled_from([0.0, 1e-4, 1e-2]),
    is_known=st.booleans(),
)
@settings(deadline=None)
def test_the_true_distance_lies_between_the_bounds(
    seed: int,
    vocabulary: int,
    listed: tuple[int, int],
    scale: float,
    apart: float,
    tolerance: float,
    is_known: bool,
) -> None:
    log_p = log_probabilities(seed, 8, vocabulary, scale)
    log_q = (log_p + apart * log_probabilities(seed + 1, 8, vocabulary, 1.0)).log_softmax(-1)
    k_p, k_q = (min(k, vocabulary) for k in listed)
    pair = pair_of(
        ref=top_of(log_p, k_p, tolerance, seed),
        cand=top_of(log_q, k_q, tolerance, seed + 1),
        vocabulary=vocabulary if is_known else None,
    )
    for truth, bound in (
        (kl_divergence(log_p, log_q), kl_bounds(pair)),
        (kl_divergence(log_q, log_p), kl_bounds(pair.reversed())),
        (total_variation(log_p, log_q), total_variation_bounds(pair)),
    ):
        assert (bound.lower >= 0).all()
        assert (bound.lower <= bound.upper).all()
        assert (bound.lower <= truth + ERROR).all()
        assert (truth <= bound.upper + ERROR).all()


def test_more_entries_never_loosen_the_bounds() -> None:
    log_p, log_q = log_probabilities(0, 50, 40, 2.0), log_probabilities(1, 50, 40, 2.0)
    kl, variation = bounds(top_of(log_p, 1), top_of(log_q, 1), 40)
    for k in range(2, 41):
        finer_kl, finer = bounds(top_of(log_p, k), top_of(log_q, k), 40)
        assert (finer_kl.lower >= kl.lower - ERROR).all()
        assert (finer.lower >= variation.lower - ERROR).all()
        assert (finer.upper <= variation.upper + ERROR).all()
        kl, variation = finer_kl, finer


@pytest.mark.parametrize("left_out", [0, 1], ids=["all-listed", "all-but-one"])
def test_bounds_meet_where_nothing_is_left_open(left_out: int) -> None:
    log_p, log_q = log_probabilities(2, 30, 12, 2.0), log_probabilities(3, 30, 12, 2.0)
    log_q[:15] = log_p[:15].flip(0).sort(-1).values.gather(-1, log_p[:15].argsort(-1).argsort(-1))
    k = 12 - left_out
    kl, variation = bounds(top_of(log_p, k), top_of(log_q, k), 12)
    # The same tokens are left out at the first 15 positions, others at some of the rest.
    for bound, truth in ((kl, kl_divergence(log_p, log_q)), (variation, total_variation(log_p, log_q))):
        assert torch.allclose(bound.upper, truth, rtol=1e-10, atol=1e-12)
        assert torch.allclose(bound.lower[:15], truth[:15], rtol=1e-10, atol=1e-12)


def least_kl_by_search(p: dict[int, float], q: dict[int, float], outside: int) -> float:
    """The least KL over all that two lists leave open, by a general solver.

    The unlisted tokens that neither has are one variable a side: spreading them evenly is best.
    """
    only_p, only_q = sorted(p.keys() - q.keys()), sorted(q.keys() - p.keys())
    cap_p, cap_q = min(p.values()), min(q.values())
    rest_p, rest_q = 1 - sum(p.values()), 1 - sum(q.values())

    def divergence(open_values: list[float]) -> float:
        qs, ps = open_values[: len(only_p)], open_values[len(only_p) :]
        terms = [(p[t], q[t]) for t in p.keys() & q.keys()]
        terms += [(p[t], value) for t, value in zip(only_p, qs, strict=True)]
        terms += [(value, q[t]) for t, value in zip(only_q, ps, strict=True)]
        terms += [(max(rest_p - sum(ps), 1e-300), max(rest_q - sum(qs), 1e-300))]
        return sum(a * math.log(a / b) for a, b in terms if a > 0)

    limits = [(1e-9, cap_q)] * len(only_p) + [(1e-9, cap_p)] * len(only_q)
    room = [
        {"type": "ineq", "fun": lambda x: rest_q - sum(x[: len(only_p)])},
        {"type": "ineq", "fun": lambda x: rest_p - sum(x[len(only_p) :])},
        {"type": "ineq", "fun": lambda x: outside * cap_q - rest_q + sum(x[: len(only_p)])},
        {"type": "ineq", "fun": lambda x: outside * cap_p - rest_p + sum(x[len(only_p) :])},
    ]
    if not limits:
        return divergence([])
    best = math.inf
    for share in (0.1, 0.5, 0.9):
        start = [share * min(cap_q, rest_q / max(len(only_p), 1))] * len(only_p)
        start += [share * min(cap_p, rest_p / max(len(only_q), 1))] * len(only_q)
        found = minimize(
            divergence,
            start,
            bounds=limits,
            constraints=room,
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-13},
        )
        if found.success:
            best = min(best, float(found.fun))
    assert best < math.inf
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_least_kl_is_the_one_that_a_solver_finds(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sides = []
    for k in (4, 5):
        tokens = torch.randperm(8, generator=generator)[:k].tolist()
        weights = torch.rand(k, generator=generator, dtype=torch.float64) + 0.05
        mass = 0.4 + 0.5 * float(torch.rand(1, generator=generator))
        sides.append(dict(zip(tokens, (weights / weights.sum() * mass).tolist(), strict=True)))
    p, q = sides
    ref, cand = (probabilities(**{f"t{t}": v for t, v in side.items()}) for side in sides)
    kl, _ = bounds(ref, cand)
    assert float(kl.lower) == pytest.approx(least_kl_by_search(p, q, outside=1000), abs=2e-6)


def test_the_least_kl_is_that_of_the_sums_until_a_cap_forbids_it() -> None:
    kl, variation = bounds(probabilities(t0=0.4, t1=0.3), probabilities(t0=0.6, t2=0.1))
    # q of token 1 is at most 0.1, p of token 2 at most 0.3; ratio 1.5 of the rest, so q_1 is capped:
    # 0.4 ln(0.4/0.6) + 0.3 ln(0.3/0.1) + 0.3 ln(0.3/0.3).
    assert float(kl.lower) == pytest.approx(0.4 * math.log(0.4 / 0.6) + 0.3 * math.log(3), abs=1e-12)
    assert float(variation.lower) == pytest.approx(0.2)
    # With token 1 at 0.3 in the candidate, within 0.4, the rest of both sides is in the ratio 2 to 3.
    uncapped, _ = bounds(probabilities(t0=0.6, t1=0.2), probabilities(t0=0.4))
    assert float(uncapped.lower) == pytest.approx(
        0.6 * math.log(0.6 / 0.4) + 0.4 * math.log(0.4 / 0.6), abs=1e-12
    )


def test_a_token_that_the_candidate_hides_below_its_list_costs_what_the_cap_demands() -> None:
    kl, variation = bounds(probabilities(t0=0.5, t1=0.4), probabilities(t0=0.5, t2=0.1, t3=0.01), 10_000)
    # q_1 <= 0.01, so that 0.39 of p's mass has no counterpart whatever the rest is.
    assert float(variation.lower) == pytest.approx(0.39)
    # Disjoint but for token 0: 1 - 0.5.
    assert float(variation.upper) == pytest.approx(0.5)
    assert float(kl.lower) >= 0.4 * math.log(0.4 / 0.01) - 0.4
    assert float(kl.upper) == math.inf


def test_total_variation_bounds_are_attained_by_distributions_that_fit() -> None:
    p_list, q_list = {0: 0.5, 1: 0.2, 2: 0.1}, {0: 0.3, 1: 0.3, 3: 0.1}
    _, variation = bounds(
        *(probabilities(**{f"t{t}": v for t, v in x.items()}) for x in (p_list, q_list)), 50
    )
    p, q = torch.zeros(2, 50, dtype=torch.float64), torch.zeros(2, 50, dtype=torch.float64)
    for t, v in p_list.items():
        p[:, t] = v
    for t, v in q_list.items():
        q[:, t] = v
    # Nearest: each side's rest where the other lists something, then on the same tokens.
    p[0, 3], q[0, 2] = 0.1, 0.1
    p[0, 10:20], q[0, 10:20] = 0.01, 0.02
    # Farthest: on tokens of their own.
    p[1, 10:20], q[1, 20:30] = 0.02, 0.03
    assert torch.allclose(p.sum(-1), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(q.sum(-1), torch.ones(2, dtype=torch.float64))
    attained = (p - q).abs().sum(-1) / 2
    assert attained.tolist() == pytest.approx([float(variation.lower), float(variation.upper)])


def test_what_one_side_masks_and_the_other_lists_is_infinitely_far() -> None:
    kl, _ = bounds(probabilities(t0=0.5, t1=0.2), probabilities(t0=0.6, t1=0.0))
    assert float(kl.lower) == math.inf
    reverse = kl_bounds(
        pair_of(ref=probabilities(t0=0.6, t1=0.0), cand=probabilities(t0=0.5, t1=0.2), vocabulary=None)
    )
    assert float(reverse.lower) < math.inf


def test_a_side_without_any_rest_excludes_what_it_does_not_list() -> None:
    kl, _ = bounds(probabilities(t0=0.5, t1=0.5), probabilities(t0=0.5, t2=0.5))
    assert float(kl.lower) == math.inf


def test_rounding_to_few_decimals_does_not_make_a_distance() -> None:
    log_p = log_probabilities(5, 200, 1000, 3.0)
    greatest = log_p.topk(10)
    sides = [
        TopLogprobs(
            tokens=greatest.indices,
            logprobs=(greatest.values * 10**decimals).round() / 10**decimals,
            tolerance=0.5 * 10**-decimals,
        )
        for decimals in (2, 3)
    ]
    kl, variation = bounds(*sides)
    assert float(kl.lower.max()) == 0.0
    assert float(variation.lower.max()) == 0.0
    undeclared = TopLogprobs(tokens=sides[0].tokens, logprobs=sides[0].logprobs, tolerance=1e-9)
    rounded, _ = bounds(top_of(log_p, 10), undeclared)
    assert float(rounded.lower.max()) > 0, "with another tolerance the rounding is a difference"
