import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cosine
from scipy.stats import pearsonr
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import FORMATS
from validator.numerics.kernels import TILE
from validator.numerics.metrics import Metrics, measure, measure_blocks
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp_steps

DTYPES = [fmt.dtype for fmt in FORMATS.values() if fmt.dtype is not None]
HOT = [torch.bfloat16, torch.float16, torch.float32]
FLOATS = tuple(f.name for f in fields(Metrics) if f.type == "float" or f.type is float)


def pair(
    dtype: torch.dtype, shape: tuple[int, ...] = (3, 211, 16), *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Two tensors a few steps apart, with zeros, a mean that is not 0, and values of both signs."""
    generator = torch.Generator().manual_seed(seed)
    ref = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5
    ref[ref.abs() < 0.05] = 0.0
    fmt = FORMATS[str(dtype).removeprefix("torch.")]
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    cand = ref * (1 + 2 * fmt.unit_roundoff * noise)
    return round_nearest(ref, fmt).to(dtype), round_nearest(cand, fmt).to(dtype)


def expected(ref: Tensor, cand: Tensor) -> dict[str, float]:
    """The figures by their formulas, in float64 over the finite pairs."""
    a, b = ref.double().reshape(-1), cand.double().reshape(-1)
    finite = a.isfinite() & b.isfinite()
    a, b = a[finite], b[finite]
    d = b - a
    relative = torch.where(d == 0, 0.0, d.abs() / a.abs())
    guarded = d.abs() / (a.abs() + 1e-7)
    return {
        "max_abs": d.abs().max().item(),
        "mean_abs": d.abs().mean().item(),
        "max_rel": relative.max().item(),
        "rel_l2": (d.norm() / a.norm()).item(),
        "rms": d.square().mean().sqrt().item(),
        "bias": d.mean().item(),
        "gain": ((d * a).sum() / a.square().sum()).item(),
        "cosine": ((a * b).sum() / (a.norm() * b.norm())).item(),
        "pcc": torch.corrcoef(torch.stack((a, b)))[0, 1].item(),
        "snr_db": 20 * math.log10((a.norm() / d.norm()).item()),
        "mere": guarded.mean().item(),
        "mare": guarded.max().item(),
        "within_0p1_percent": (d.abs() <= 1e-3 * a.abs()).double().mean().item(),
    }


def steps_of(ref: Tensor, cand: Tensor) -> Tensor:
    finite = ref.double().isfinite() & cand.double().isfinite()
    return ulp_steps(ref=ref, cand=cand)[finite]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_every_figure_is_its_formula(dtype: torch.dtype) -> None:
    ref, cand = pair(dtype)
    made = measure(ref=ref, cand=cand)
    for name, value in expected(ref, cand).items():
        assert getattr(made, name) == pytest.approx(value, rel=1e-9, abs=1e-15), name
    assert set(expected(ref, cand)) == set(FLOATS), "a figure without a formula here"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_steps_are_those_of_ulp_steps(dtype: torch.dtype) -> None:
    ref, cand = pair(dtype)
    made, steps = measure(ref=ref, cand=cand), steps_of(ref, cand)
    assert made.ulp_steps_max == int(steps.max())
    octaves = [int((steps == 0).sum())]
    octaves += [int(((steps >= 2**k) & (steps < 2 ** (k + 1))).sum()) for k in range(63)]
    assert made.ulp_steps_histogram == tuple(octaves[: len(made.ulp_steps_histogram)])
    assert sum(made.ulp_steps_histogram) == made.compared == ref.numel()
    assert made.mismatched == int((steps != 0).sum())


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize == 1], ids=str)
def test_all_pairs_of_an_eight_bit_format_are_counted_as_they_are(dtype: torch.dtype) -> None:
    values = torch.arange(256, dtype=torch.uint8).view(dtype)
    ref, cand = values.view(torch.uint8).repeat_interleave(256).view(dtype), values.repeat(256)
    made, steps = measure(ref=ref, cand=cand), steps_of(ref, cand)
    a, b = ref.double(), cand.double()
    assert made.compared == int((a.isfinite() & b.isfinite()).sum())
    assert (made.nan_reference, made.inf_candidate) == (int(a.isnan().sum()), int(b.isinf().sum()))
    special = ~(a.isfinite() & b.isfinite())
    assert made.class_mismatched == int((special & (a != b) & ~(a.isnan() & b.isnan())).sum())
    assert made.mismatched == 256 * 255
    assert (made.ulp_steps_max, made.ulp_steps_p50) == (int(steps.max()), int(steps.double().quantile(0.5)))
    for name, value in expected(ref, cand).items():
        assert getattr(made, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_vendor_figures_agree_with_scipy_and_sixty_digits() -> None:
    ref, cand = pair(torch.float32, (4096,))
    made = measure(ref=ref, cand=cand)
    assert made.pcc == pytest.approx(
        pearsonr(ref.double().numpy(), cand.double().numpy()).statistic, rel=1e-12
    )
    assert made.cosine == pytest.approx(1 - cosine(ref.double().numpy(), cand.double().numpy()), rel=1e-12)
    with mpmath.workdps(60):
        errors = [
            abs(mpmath.mpf(b) - mpmath.mpf(a)) / (abs(mpmath.mpf(a)) + mpmath.mpf("1e-7"))
            for a, b in zip(ref.tolist(), cand.tolist(), strict=True)
        ]
        assert made.mere == pytest.approx(float(mpmath.fsum(errors) / len(errors)), rel=1e-12)
        assert made.mare == pytest.approx(float(max(errors)), rel=1e-14)


@pytest.mark.parametrize("dtype", HOT, ids=str)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_bit_patterns_give_finite_figures_and_the_right_counts(
    dtype: torch.dtype, data: st.DataObject
) -> None:
    bits = dtype.itemsize * 8
    integer = {16: torch.int16, 32: torch.int32}[bits]
    codes = st.lists(st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1), min_size=8, max_size=8)
    ref, cand = (torch.tensor(data.draw(codes), dtype=integer).view(dtype) for _ in range(2))
    made = measure(ref=ref, cand=cand)
    finite = ref.isfinite() & cand.isfinite()
    assert made.compared == int(finite.sum())
    assert (made.nan_reference, made.nan_candidate) == (int(ref.isnan().sum()), int(cand.isnan().sum()))
    assert (made.inf_reference, made.inf_candidate) == (int(ref.isinf().sum()), int(cand.isinf().sum()))
    one_nan = ref.isnan() != cand.isnan()
    infinite = ~ref.isnan() & ~cand.isnan() & (ref.isinf() | cand.isinf()) & (ref.float() != cand.float())
    assert made.class_mismatched == int((one_nan | infinite).sum())
    assert made.mismatched == int((ref.view(integer) != cand.view(integer)).sum())
    if made.compared:
        d = (cand.double() - ref.double())[finite].abs()
        assert made.max_abs == d.max().item()
        assert made.mean_abs == pytest.approx(d.mean().item(), rel=1e-12)
        assert made.ulp_steps_max == int(steps_of(ref, cand).max())


def test_a_percentile_is_the_number_of_steps_that_so_many_pairs_stay_within() -> None:
    ref = torch.ones(1000)
    codes = ref.view(torch.int32).clone()
    codes[500:] += 3  # half of the pairs are 0 apart, so p50 is 0
    codes[980:] += 97  # 20 of 1000 are 100 apart: beyond 98%
    codes[999] += 100_000
    made = measure(ref=ref, cand=codes.view(torch.float32))
    assert (made.ulp_steps_p50, made.ulp_steps_p99, made.ulp_steps_p999) == (0, 100, 100)
    assert made.ulp_steps_max == 100_100
    made = measure(ref=ref[999:], cand=codes[999:].view(torch.float32))
    assert made.ulp_steps_p50 == pytest.approx(100_100, rel=0.004)


def test_nan_and_infinity_poison_nothing() -> None:
    ref, cand = pair(torch.float32)
    spoiled_ref, spoiled_cand = ref.clone(), cand.clone()
    spoiled_ref[0, 3, 4], spoiled_cand[0, 3, 4] = math.nan, math.nan
    spoiled_ref[1, 3, 4] = math.inf
    spoiled_cand[2, 3, 4] = -math.inf
    spoiled_cand[2, 3, 5] = math.nan
    spoiled_ref[2, 3, 6], spoiled_cand[2, 3, 6] = math.inf, -math.inf
    made = measure(ref=spoiled_ref, cand=spoiled_cand)
    for name, value in expected(spoiled_ref, spoiled_cand).items():
        assert getattr(made, name) == pytest.approx(value, rel=1e-9), name
    assert (made.nan_reference, made.nan_candidate, made.inf_reference, made.inf_candidate) == (1, 2, 2, 2)
    assert (made.class_mismatched, made.compared) == (4, ref.numel() - 5)
    assert (made.worst_index, made.worst_reference) == ((1, 3, 4), math.inf)
    assert all(bool(errors.rel_l2.isfinite().all()) for errors in made.dims)


def test_figures_of_nothing_finite_are_nan_and_not_zero() -> None:
    made = measure(ref=torch.full((4,), math.nan), cand=torch.full((4,), math.nan))
    assert (made.compared, made.class_mismatched, made.ulp_steps_max) == (0, 0, None)
    assert all(math.isnan(getattr(made, name)) for name in FLOATS)
    assert measure(ref=torch.empty(0, 3), cand=torch.empty(0, 3)).elements == 0


def test_values_near_a_large_mean_keep_their_correlation() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(20_000, generator=generator, dtype=torch.float64)
    ref = (base + 1e6).float()
    cand = (0.6 * base + 0.8 * torch.randn(20_000, generator=generator, dtype=torch.float64) + 1e6).float()
    made = measure(ref=ref, cand=cand)
    assert made.pcc == pytest.approx(expected(ref, cand)["pcc"], rel=1e-7)
    assert 0.5 < made.pcc < 0.7
    assert made.cosine > 0.999999


def test_zeros_give_the_limits_of_the_ratios() -> None:
    made = measure(ref=torch.zeros(3), cand=torch.tensor([0.0, 0.0, 1.0]))
    assert (made.max_rel, made.rel_l2, made.snr_db) == (math.inf, math.inf, -math.inf)
    made = measure(ref=torch.ones(3), cand=torch.ones(3))
    assert (made.max_rel, made.rel_l2, made.snr_db, made.cosine) == (0.0, 0.0, math.inf, 1.0)
    assert math.isnan(made.pcc), "a constant has no correlation"


def cut(values: Tensor, size: int) -> Iterator[Tensor]:
    yield from values.reshape(-1).split(size)


@pytest.mark.parametrize("sizes", [(1, 7), (TILE, TILE), (TILE + 1, 5000), (100_000, 333)], ids=str)
@pytest.mark.parametrize("shape", [(4, 611, 24), (3, 5000), (20_001,), (9000, 3)], ids=str)
def test_figures_are_the_same_to_the_last_bit_however_the_blocks_are_cut(
    shape: tuple[int, ...], sizes: tuple[int, int]
) -> None:
    ref, cand = pair(torch.bfloat16, shape)
    ref.reshape(-1)[1234] = math.nan
    whole = measure(ref=ref, cand=cand)
    made = measure_blocks(ref=cut(ref, sizes[0]), cand=cut(cand, sizes[1]), shape=shape)
    for field in fields(Metrics):
        if field.name != "dims":
            assert str(getattr(made, field.name)) == str(getattr(whole, field.name)), field.name
    for one, other in zip(made.dims, whole.dims, strict=True):
        assert torch.equal(one.squared_error, other.squared_error)
        assert torch.equal(one.squared_norm, other.squared_norm)


def test_every_dim_has_its_own_errors() -> None:
    ref, cand = pair(torch.float32, (2, 1, 300, 24))
    made = measure(ref=ref, cand=cand)
    assert [errors.dim for errors in made.dims] == [0, 2, 3]
    d = cand.double() - ref.double()
    for errors in made.dims:
        others = [dim for dim in range(4) if dim != errors.dim]
        wanted = (d.square().sum(others) / ref.double().square().sum(others)).sqrt()
        assert torch.allclose(errors.rel_l2, wanted, rtol=1e-12)


def test_one_bad_token_of_4096_is_the_worst_slice_though_the_whole_looks_well() -> None:
    ref, _ = pair(torch.bfloat16, (4096, 32))
    cand = ref.clone()
    cand[2907] = -cand[2907]
    made = measure(ref=ref, cand=cand)
    assert made.cosine > 0.999
    tokens = made.dims[0]
    assert (tokens.worst, tokens.rel_l2[2907].item()) == (2907, 2.0)
    assert tokens.over(0, 2907) == 0.0
    assert tokens.over(2907, 2908) == 2.0


def test_the_finer_side_is_rounded_before_steps_are_counted() -> None:
    ref = torch.randn(500, generator=torch.Generator().manual_seed(0))
    made = measure(ref=ref, cand=ref.bfloat16())
    assert (made.steps_format, made.mismatched, made.ulp_steps_max) == ("bfloat16", 0, 0)
    assert made.max_abs == (ref.bfloat16().double() - ref.double()).abs().max().item() > 0
    swapped = measure(ref=ref.bfloat16(), cand=ref)
    assert (swapped.steps_format, swapped.mismatched) == ("bfloat16", 0)
    # Halfway between two values of bfloat16 but for a bit that float32 does not have.
    exact = torch.tensor([1 + 2**-8 + 2**-40], dtype=torch.float64)
    assert measure(ref=exact, cand=torch.tensor([1 + 2**-7]).bfloat16()).mismatched == 0


def test_integers_and_booleans_are_compared_exactly() -> None:
    made = measure(
        ref=torch.arange(6).view(2, 3), cand=torch.tensor([[0, 1, 2], [3, 5, 5]], dtype=torch.int32)
    )
    assert (made.mismatched, made.worst_index) == (1, (1, 1))
    assert (made.worst_reference, made.worst_candidate) == (4, 5)
    assert math.isnan(made.max_abs)
    made = measure(ref=torch.tensor([True, False]), cand=torch.tensor([True, True]))
    assert (made.mismatched, made.worst_index) == (1, (1,))


def test_packed_codes_are_compared_by_their_bits() -> None:
    codes = torch.tensor([0x12, 0x34], dtype=torch.uint8)
    other = torch.tensor([0x12, 0x35], dtype=torch.uint8)
    made = measure(ref=codes.view(torch.float4_e2m1fn_x2), cand=other.view(torch.float4_e2m1fn_x2))
    assert (made.mismatched, made.worst_index) == (1, (1,))


def test_complex_numbers_are_compared_by_their_parts() -> None:
    made = measure(ref=torch.tensor([1 + 2j, 3 + 4j]), cand=torch.tensor([1 + 2j, 3 + 5j]))
    assert (made.max_abs, made.worst_index, made.elements) == (1.0, (1, 1), 4)


def test_what_has_no_distance_is_refused_with_both_sides() -> None:
    with pytest.raises(ComparisonError, match=r"ref has shape \[2\] and cand has shape \[3\]"):
        measure(ref=torch.zeros(2), cand=torch.zeros(3))
    with pytest.raises(ComparisonError, match=r"ref is torch.int64 and cand is torch.float32"):
        measure(ref=torch.zeros(2, dtype=torch.int64), cand=torch.zeros(2))
    with pytest.raises(ComparisonError, match=r"4 elements of ref and 3 of cand were given for tensors of 4"):
        measure_blocks(ref=cut(torch.zeros(4), 2), cand=cut(torch.zeros(3), 2), shape=(4,))
    with pytest.raises(ComparisonError, match="no block came from one side"):
        measure_blocks(ref=iter(()), cand=iter(()), shape=(4,))


STREAM = """
import resource, sys
import torch
from validator.numerics.metrics import measure_blocks

def blocks(count):
    block = torch.ones(1 << 20, dtype=torch.bfloat16)
    for _ in range(count):
        yield block.clone()

measure_blocks(ref=blocks(1), cand=blocks(1), shape=(1 << 10, 1 << 10))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = measure_blocks(ref=blocks(200), cand=blocks(200), shape=(200 << 10, 1 << 10))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, made.compared)
"""


def test_memory_does_not_grow_with_the_tensor() -> None:
    run = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, text=True, check=True)
    growth, compared = map(int, run.stdout.split())
    unit = 1024 if sys.platform != "darwin" else 1
    assert compared == 200 << 20
    assert growth * unit < 40 << 20, "both sides of the tensor would take 800 MiB"
