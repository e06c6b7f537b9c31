import math

import mpmath
import pytest
import torch
from torch import Tensor

from validator.numerics.bands import (
    U32,
    UNDERFLOW,
    C,
    Noise,
    blocked_lambda,
    is_explained,
    matmul_sigma,
    normal_lambda,
    partials_sigma,
    product_noise,
    softmax_sigma,
    tail_lambda,
)
from validator.numerics.contractions import (
    TF32,
    Accumulation,
    Order,
    fp8_product,
    product_of_parts,
    sum_products,
)
from validator.numerics.formats import FORMATS, Format
from validator.numerics.recipes import FUSED, RECIPES, Recipe
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


BF16 = FORMATS["bfloat16"]
ACCUMULATORS = {
    "float32": (Recipe(name="r"), Accumulation()),
    "float32 in blocks": (Recipe(name="r", block=16), Accumulation(order=Order.BLOCKED, block=16)),
    "bfloat16": (Recipe(name="r", accumulate="bfloat16"), Accumulation(fmt=BF16)),
    "bfloat16 backwards": (
        Recipe(name="r", accumulate="bfloat16"),
        Accumulation(fmt=BF16, order=Order.REVERSED),
    ),
    "bfloat16 in blocks": (
        Recipe(name="r", accumulate="bfloat16", block=16),
        Accumulation(fmt=BF16, order=Order.BLOCKED, block=16),
    ),
    "float16": (Recipe(name="r", accumulate="float16"), Accumulation(fmt=FORMATS["float16"])),
    "13 bits": (Recipe(name="r", accumulator_bits=13), Accumulation(bits=13)),
    "13 bits, pairwise": (
        Recipe(name="r", accumulator_bits=13),
        Accumulation(bits=13, order=Order.PAIRWISE),
    ),
    "10 bits": (Recipe(name="r", accumulator_bits=10), Accumulation(bits=10)),
}


def factors(data: str, fmt: Format = BF16) -> tuple[Tensor, Tensor, Tensor]:
    x, w = (round_nearest(t.double(), fmt) for t in DATA[data](torch.Generator().manual_seed(4)))
    return x.T, w, x.T @ w


def outside(made: Tensor, y: Tensor, noise: Noise, fmt: Format = F32) -> float:
    """Return the share of elements that are not explained in float32, where nothing else hides them."""
    multiplier = tail_lambda(y.numel())
    explained = is_explained(
        exact=y, cand=round_nearest(made, fmt), fmt=fmt, noise=noise, multiplier=multiplier
    )
    return 1 - float(explained.double().mean())


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("accumulator", ACCUMULATORS)
def test_a_products_noise_covers_its_accumulator(accumulator: str, data: str) -> None:
    recipe, how = ACCUMULATORS[accumulator]
    x, w, y = factors(data)
    made = sum_products(x, w, how)
    assert outside(made, y, product_noise(x, w, y, recipe, F32)) == 0
    if not accumulator.startswith("float32"):
        assert outside(made, y, product_noise(x, w, y, FUSED, F32)) > 0.5
    lost_term = made - x[:, :1] * w[:1]
    if accumulator.startswith("float32"):
        assert outside(lost_term, y, product_noise(x, w, y, recipe, F32)) > 0.7


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("parts", [2, 8])
def test_a_products_noise_covers_partial_sums_in_a_narrow_format(parts: int, data: str) -> None:
    x, w, y = factors(data)
    made = product_of_parts(x, w, parts=parts, fmt=BF16, summed=torch.matmul)
    recipe = Recipe(name="r", split_k=parts, partials="bfloat16")
    assert outside(made, y, product_noise(x, w, y, recipe, F32)) == 0
    assert outside(made, y, product_noise(x, w, y, FUSED, F32)) > 0.9
    if parts == 8 and data == "zero mean":
        # Stored in bfloat16 the last rounding is the result's own, and the parts still show.
        assert outside(made, y, product_noise(x, w, y, recipe, BF16), BF16) == 0
        assert outside(made, y, product_noise(x, w, y, FUSED, BF16), BF16) > 0.1


@pytest.mark.parametrize("data", DATA)
def test_a_products_noise_covers_factors_in_tf32_where_they_are_float32(data: str) -> None:
    x, w, y = factors(data, F32)
    recipe = RECIPES["tf32"]
    made = round_nearest(x, TF32) @ round_nearest(w, TF32)
    assert outside(made, y, product_noise(x, w, y, recipe, F32)) == 0
    assert outside(made, y, product_noise(x, w, y, FUSED, F32)) > 0.5
    assert outside(made * 1.02, y, product_noise(x, w, y, recipe, F32)) > 0.1
    assert torch.equal(
        torch.as_tensor(product_noise(x, w, y, recipe, BF16).sigma),
        torch.as_tensor(product_noise(x, w, y, FUSED, BF16).sigma),
    )


@pytest.mark.parametrize("data", DATA)
def test_a_products_noise_covers_factors_and_products_in_bfloat16(data: str) -> None:
    x, w, y = factors(data, F32)
    made = round_nearest(x, BF16) @ round_nearest(w, BF16)
    for result in (made, round_nearest(made, BF16)):
        assert outside(result, y, product_noise(x, w, y, RECIPES["bf16-factors"], F32)) == 0
        assert outside(result, y, product_noise(x, w, y, RECIPES["tf32"], F32)) > 0.1


@pytest.mark.parametrize("data", DATA)
def test_a_products_noise_covers_fp8_factors(data: str) -> None:
    x, w, y = factors(data)
    made = fp8_product(x, w, Accumulation())
    assert outside(made, y, product_noise(x, w, y, RECIPES["fp8"], F32)) == 0
    assert outside(made, y, product_noise(x, w, y, FUSED, F32)) > 0.9


def test_sums_of_blocks_have_less_noise_and_longer_tails() -> None:
    x, w, y = factors("zero mean")
    whole, blocks = matmul_sigma(x, w, y), matmul_sigma(x, w, y, block=16)
    # m = b + K/b = 32 in place of K = 256.
    assert torch.allclose(blocks, whole * math.sqrt(32 / 256), rtol=1e-9)
    assert torch.equal(matmul_sigma(x, w, y, block=1000), matmul_sigma(x, w, y, block=256))
    assert blocked_lambda(10**9, 4) == pytest.approx(0.9 * math.log(2e12) / 2)
    assert blocked_lambda(10**9, 10**4) == normal_lambda(10**9)


def test_a_device_that_flushes_loses_terms_below_the_normal_range() -> None:
    x = torch.full((1, 16), 2.0**-64, dtype=torch.float64)
    y = x @ x.T
    assert outside(torch.zeros_like(y), y, product_noise(x, x.T, y, RECIPES["flush-subnormals"], F32)) == 0
    assert outside(torch.zeros_like(y), y, product_noise(x, x.T, y, FUSED, F32)) == 1


def test_what_is_nan_or_infinite_on_one_side_alone_is_not_explained() -> None:
    exact = torch.tensor([1.0, math.inf, math.nan, 1.0, 1.0], dtype=torch.float64)
    cand = torch.tensor([1.0, math.inf, math.nan, math.nan, math.inf])
    explained = is_explained(exact=exact, cand=cand, fmt=F32, noise=Noise(sigma=1.0), multiplier=6.0)
    assert explained.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("cancelling", [0.0, 8.0])
def test_sums_of_parts_in_any_order_of_ranks_stay_in_the_band(count: int, cancelling: float) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(count, 50_000, dtype=torch.float64, generator=generator)
    parts[::2] += cancelling
    parts[1::2] -= cancelling
    stored = parts.to(torch.bfloat16)
    fmt, total = FORMATS["bfloat16"], parts.sum(0)
    in_order, in_any = (
        partials_sigma(list(stored.double()), fmt, is_ordered=is_ordered) for is_ordered in (True, False)
    )
    errors = []
    for first in range(count):
        running = stored[first]
        for part in stored.roll(-first, 0)[1:]:
            running = running + part
        errors.append((running.double() - total).abs() - ulp(total, fmt) / 2)
    worst = torch.stack(errors).amax(0)
    allowed = normal_lambda(worst.numel() * count)
    assert float((worst / in_any).max()) < allowed
    assert float((worst / in_order).max()) > float((worst / in_any).max())


def test_a_known_order_has_the_sums_of_that_order() -> None:
    parts = [torch.tensor([x], dtype=torch.float64) for x in (64.0, -64.0, 64.0, -64.0)]
    fmt = FORMATS["bfloat16"]
    step = float(ulp(parts[0], fmt))
    # Four parts and the sums 64 - 64 = 0 and 64; in another order, 128 and 128 - 64.
    smallest = float(ulp(torch.zeros(1, dtype=torch.float64), fmt))
    assert float(partials_sigma(parts, fmt)) == pytest.approx(math.sqrt((5 * step**2 + smallest**2) / 12))
    assert float(partials_sigma(parts, fmt, is_ordered=False)) == pytest.approx(
        math.sqrt((4 * step**2 + (2 * step) ** 2 + step**2) / 12)
    )
