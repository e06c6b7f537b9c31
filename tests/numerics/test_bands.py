import math

import mpmath
import pytest
import torch
from torch import Tensor

from validator.numerics.bands import (
    U32,
    UNDERFLOW,
    C,
    matmul_sigma,
    normal_lambda,
    softmax_sigma,
    tail_lambda,
)
from validator.numerics.formats import FORMATS
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

F32 = FORMATS["float32"]


@pytest.mark.parametrize("elements", [1, 1000, 10**6, 10**10, 10**12])
@pytest.mark.parametrize("alpha", [1e-3, 1e-9])
def test_lambda_keeps_the_false_alarms_of_a_whole_run_below_alpha(elements: int, alpha: float) -> None:
    with mpmath.workdps(40):
        tail = mpmath.erfc(mpmath.mpf(normal_lambda(elements, alpha)) / mpmath.sqrt(2))
        assert elements * tail <= alpha
        # And is not needlessly wide: half a sigma less would not do for a large run.
        less = mpmath.erfc((mpmath.mpf(normal_lambda(elements, alpha)) - 0.7) / mpmath.sqrt(2))
        assert elements * less > alpha


@pytest.mark.parametrize(("elements", "known"), [(10**6, 6.5), (10**10, 7.8), (10**12, 8.4)])
def test_lambda_has_the_values_of_its_table(elements: int, known: float) -> None:
    assert normal_lambda(elements) == pytest.approx(known, abs=0.05)


def test_exponential_tails_ask_for_a_wider_lambda_on_large_runs() -> None:
    assert tail_lambda(1) == normal_lambda(1)
    assert tail_lambda(10**9) == pytest.approx(0.45 * math.log(2e12))
    assert tail_lambda(10**9) > normal_lambda(10**9)


@pytest.mark.parametrize("function", [normal_lambda, tail_lambda])
def test_lambda_grows_with_the_run_and_exists_for_an_empty_one(function) -> None:
    values = [function(n) for n in (0, 1, 10, 10**6, 10**12)]
    assert values == sorted(values)
    assert values[0] == values[1]


def test_c_is_the_mean_of_one_roundings_deviation_over_a_binade() -> None:
    """ulp/sqrt(12) over |v|, uniformly over [1, 2): 2 u ln(2) / sqrt(12) = 0.400 u; log-uniformly 0.416 u."""
    v = torch.linspace(1, 2, 1 << 16, dtype=torch.float64)[:-1]
    deviation = (2 * U32 / math.sqrt(12)) / v / U32
    assert float(deviation.mean()) <= C <= float(deviation.max())
    assert pytest.approx(float(deviation.square().mean().sqrt()), rel=0.06) == C


def sequential(terms: Tensor) -> Tensor:
    """Add `[K, *]` one after the other, each sum rounded to float32."""
    total = torch.zeros(terms.shape[1:], dtype=torch.float32)
    for term in terms:
        total = total + term
    return total.to(torch.float64)


def blocked(terms: Tensor) -> Tensor:
    """Add blocks of 32, then the blocks."""
    return sequential(torch.stack([sequential(b).to(torch.float32) for b in terms.split(32)]))


def pairwise(terms: Tensor) -> Tensor:
    while len(terms) > 1:
        odd = terms[len(terms) & ~1 :]
        terms = torch.cat([terms[0 : len(terms) - 1 : 2] + terms[1::2], odd])
    return terms[0].to(torch.float64)


def shuffled(terms: Tensor) -> Tensor:
    return sequential(terms[torch.randperm(len(terms), generator=torch.Generator().manual_seed(0))])


def backwards(terms: Tensor) -> Tensor:
    return sequential(terms.flip(0))


ORDERS = {f.__name__: f for f in (sequential, backwards, shuffled, blocked, pairwise)}
DATA = {
    "zero mean": lambda g: (torch.randn(256, 64, generator=g), torch.randn(256, 96, generator=g)),
    "positive": lambda g: (torch.rand(256, 64, generator=g), torch.rand(256, 96, generator=g)),
    "heavy tails": lambda g: (torch.randn(256, 64, generator=g) ** 3, torch.randn(256, 96, generator=g) ** 3),
    "outlier": lambda g: (
        torch.randn(256, 64, generator=g).index_fill(0, torch.tensor([7]), 300.0),
        torch.randn(256, 96, generator=g),
    ),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("order", ORDERS)
def test_matmul_sigma_covers_float32_accumulation_in_any_order(order: str, data: str) -> None:
    x, w = DATA[data](torch.Generator().manual_seed(1))
    # Products of 11-bit values are exact in float32, as those of bfloat16 are: only the sums round.
    x, w = (round_nearest(t.double(), FORMATS["float16"]).float() for t in (x, w))
    exact = x.double().T @ w.double()
    sigma = matmul_sigma(x.double().T, w.double(), exact)
    error = ORDERS[order](x[:, :, None] * w[:, None, :]) - exact
    ratio = (error.abs() - ulp(exact, F32) / 2).clamp_min(0) / sigma
    assert float(ratio.max()) < tail_lambda(ratio.numel())
    assert float((error / torch.hypot(sigma, ulp(exact, F32) / math.sqrt(12))).square().mean().sqrt()) <= 1.1
    if order == "sequential" and data == "zero mean":
        # It is sigma of the worst case, a sum one after the other, not an arbitrary margin above it.
        assert float((error / sigma).square().mean().sqrt()) > 0.5


def test_matmul_sigma_is_brute_force_summed() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    w = torch.tensor([[0.5], [0.25], [-1.0]], dtype=torch.float64)
    y = x @ w
    squares = 0.25 + 0.25 + 9.0
    by_hand = 0.43 * 2.0**-24 * math.sqrt(3 / 2 * squares + 3 / 3 * 3.0**2) + 3 * 2.0**-150
    assert float(y) == -3.0
    assert float(matmul_sigma(x, w, y)) == pytest.approx(by_hand, rel=1e-12)


def test_matmul_sigma_takes_batches_and_leaves_its_arguments_alone() -> None:
    x, w = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(2, 8, 5, dtype=torch.float64)
    y = x @ w
    kept = x.clone(), w.clone(), y.clone()
    sigma = matmul_sigma(x, w, y)
    assert sigma.shape == (2, 3, 5)
    # Batched and single products may sum in other orders.
    assert torch.allclose(sigma[1], matmul_sigma(x[1], w[1], y[1]), rtol=1e-12, atol=0)
    assert all(torch.equal(a, b) for a, b in zip((x, w, y), kept, strict=True))


def test_products_of_zeros_leave_gradual_underflow_alone() -> None:
    zeros = torch.zeros(1, 16, dtype=torch.float64)
    assert float(matmul_sigma(zeros, zeros.T, zeros @ zeros.T)) == 16 * UNDERFLOW


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0], ids=["flat", "normal", "peaked"])
@pytest.mark.parametrize("offset", [0.0, 50.0, -50.0])
def test_softmax_sigma_covers_the_float32_kernel(scale: float, offset: float) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(64, 256, generator=generator) * scale + offset
    scores = scores.masked_fill(torch.rand(64, 256, generator=generator) < 0.2, -math.inf)
    p = torch.softmax(scores.double(), -1)
    error = (torch.softmax(scores, -1).double() - p).abs()
    ratio = (error - ulp(p, F32) / 2).clamp_min(0) / softmax_sigma(scores.double(), p, dim=-1)
    assert float(ratio.max()) < normal_lambda(ratio.numel())


def test_softmax_sigma_carries_the_scores_own_error() -> None:
    """dp_i = p_i (ds_i - sum_j p_j ds_j): simulated with independent errors of the scores."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(16, dtype=torch.float64, generator=generator) * 2
    p = torch.softmax(scores, -1)
    error = 1e-4
    runs = torch.softmax(
        scores + error * torch.randn(20000, 16, dtype=torch.float64, generator=generator), -1
    )
    measured = (runs - p).square().mean(0).sqrt()
    sigma = softmax_sigma(scores, p, dim=-1, score_error=error)
    ratio = measured / sigma
    assert bool((ratio < 1.05).all())
    assert bool((ratio[p < 0.2] > 0.7).all())


def test_masked_keys_have_no_more_than_the_smallest_absolute_error() -> None:
    scores = torch.tensor([0.0, -math.inf], dtype=torch.float64)
    sigma = softmax_sigma(scores, torch.softmax(scores, -1), dim=-1)
    assert float(sigma[1]) == 2.0**-149
    assert sigma.isfinite().all()
