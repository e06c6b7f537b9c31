import json
import math
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.errors import ComparisonError
from validator.numerics.formats import FORMATS, Format, format_of
from validator.numerics.ulp import ulp, ulp_error, ulp_steps

CASES = json.loads((Path(__file__).parent / "data" / "ulp_cases.json").read_text())
NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e2m1": "float4_e2m1",
}
E2M1_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
EIGHT_BIT = [fmt for fmt in FORMATS.values() if fmt.bits == 8]
SIXTEEN_BIT = [fmt for fmt in FORMATS.values() if fmt.bits == 16]
INT64_MAX = 2**63 - 1


def from_codes(codes: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Reinterpret non-negative int64 bit patterns as values of a format."""
    width = max(fmt.bits, 8)
    signed = torch.where(codes >= 1 << (width - 1), codes - (1 << width), codes) if width < 64 else codes
    return signed.to(getattr(torch, f"int{width}")).view(fmt.dtype)


def from_hex(text: str, fmt: Format) -> torch.Tensor:
    code = int(text, 16)
    return from_codes(torch.tensor([code - (1 << 64) if code >= 1 << 63 else code]), fmt)


def steps_between_codes(ref: str, cand: str, fmt: Format) -> int:
    if fmt.dtype is None:
        code = [torch.tensor([int(text, 16)], dtype=torch.uint8) for text in (ref, cand)]
        return int(ulp_steps(ref=code[0], cand=code[1], fmt=fmt))
    return int(ulp_steps(ref=from_hex(ref, fmt), cand=from_hex(cand, fmt)))


def error_of(exact: torch.Tensor, cand: str, fmt: Format) -> float:
    if fmt.dtype is None:  # no tensor holds one such element: measure with the same formula
        code = int(cand, 16)
        value = E2M1_VALUES[code & 7] * (-1 if code & 8 else 1)
        return float(abs(value - exact) / ulp(exact, fmt))
    return float(ulp_error(exact=exact, cand=from_hex(cand, fmt)))


def exact_of(case: dict[str, Any], fmt: Format) -> torch.Tensor:
    if case["kind"] == "mixed":
        return torch.tensor([float.fromhex(case["ref_fp64_hex"])], dtype=torch.float64)
    if fmt.dtype is None:
        return torch.tensor([float(case["ref_val"])], dtype=torch.float64)
    return from_hex(case["ref"], fmt).to(torch.float64)


def ranks_of(values: torch.Tensor) -> torch.Tensor:
    """Place of each value among all distinct values: an order that owes nothing to bit patterns."""
    return torch.searchsorted(values[~values.isnan()].unique(), values)


def every_value(fmt: Format) -> torch.Tensor:
    return from_codes(torch.arange(1 << fmt.bits), fmt)


def test_all_cases_of_the_data_file_are_read() -> None:
    assert len(CASES) == 75
    assert {case["fmt"] for case in CASES} == set(NAMES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['fmt']}-{case['note']}")
def test_known_pair(case: dict[str, Any]) -> None:
    fmt = format_of(NAMES[case["fmt"]])
    ref = case["ref"] if case["kind"] == "same_dtype" else case["ref_rounded"]
    expected = case["int_dist"] if case["kind"] == "same_dtype" else case["int_dist_to_RN"]
    steps = steps_between_codes(ref, case["cand"], fmt)
    assert steps == (-1 if expected is None else min(expected, INT64_MAX))
    error = error_of(exact_of(case, fmt), case["cand"], fmt)
    assert (
        math.isnan(error) if case["ulp_err"] is None else error == pytest.approx(case["ulp_err"], rel=1e-13)
    )


@pytest.mark.parametrize("fmt", EIGHT_BIT, ids=lambda fmt: fmt.name)
def test_steps_are_the_difference_of_ranks_for_all_pairs_of_an_eight_bit_format(fmt: Format) -> None:
    values = every_value(fmt)
    exact = values.to(torch.float64)
    rank, missing = ranks_of(exact), exact.isnan()
    ref, cand = values.repeat_interleave(256), values.repeat(256)
    expected = (rank[:, None] - rank[None, :]).abs()
    expected[missing[:, None] ^ missing[None, :]] = -1
    expected[missing[:, None] & missing[None, :]] = 0
    assert torch.equal(ulp_steps(ref=ref, cand=cand), expected.flatten())
    codes = torch.arange(256, dtype=torch.uint8)
    by_code = ulp_steps(ref=codes.repeat_interleave(256), cand=codes.repeat(256), fmt=fmt)
    assert torch.equal(by_code, expected.flatten())


def test_steps_are_the_difference_of_ranks_for_all_pairs_of_float4() -> None:
    values = torch.cat((E2M1_VALUES, -E2M1_VALUES))
    rank = ranks_of(values)
    codes = torch.arange(16, dtype=torch.uint8)
    steps = ulp_steps(ref=codes.repeat_interleave(16), cand=codes.repeat(16), fmt=format_of("float4_e2m1"))
    assert torch.equal(steps, (rank[:, None] - rank[None, :]).abs().flatten())


@pytest.mark.parametrize("fmt", SIXTEEN_BIT, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_steps_are_the_difference_of_ranks_for_all_values_of_a_sixteen_bit_format(
    fmt: Format, seed: int
) -> None:
    values = every_value(fmt)
    exact = values.to(torch.float64)
    rank, missing = ranks_of(exact), exact.isnan()
    other = torch.randperm(1 << 16, generator=torch.Generator().manual_seed(seed))
    expected = (rank - rank[other]).abs()
    expected[missing ^ missing[other]] = -1
    expected[missing & missing[other]] = 0
    assert torch.equal(ulp_steps(ref=values, cand=values[other]), expected)


@pytest.mark.parametrize("fmt", EIGHT_BIT, ids=lambda fmt: fmt.name)
def test_errors_are_differences_in_gaps_for_all_pairs_of_an_eight_bit_format(fmt: Format) -> None:
    values = every_value(fmt)
    exact = values.to(torch.float64)
    positive = exact[exact.isfinite() & (exact >= 0)].unique()
    gaps = torch.cat((positive.diff(), positive.diff()[-1:]))
    gap = gaps[torch.searchsorted(positive, exact.abs().nan_to_num(0.0, posinf=0.0))]
    expected = (exact[None, :] - exact[:, None]).abs() / gap[:, None]
    expected[~(exact.isfinite()[:, None] & exact.isfinite()[None, :])] = torch.nan
    made = ulp_error(exact=exact.repeat_interleave(256), cand=values.repeat(256))
    assert torch.equal(made.nan_to_num(-1.0), expected.flatten().nan_to_num(-1.0))


@pytest.mark.parametrize("fmt", SIXTEEN_BIT, ids=lambda fmt: fmt.name)
def test_errors_of_all_values_of_a_sixteen_bit_format_are_the_fraction_they_were_moved_by(
    fmt: Format,
) -> None:
    values = every_value(fmt)
    exact = values.to(torch.float64)
    finite = exact.isfinite()
    assert ulp_error(exact=exact, cand=values)[~finite].isnan().all()
    exact, values = exact[finite], values[finite]
    away = torch.where(exact.signbit(), -1.0, 1.0) * ulp(exact, fmt)
    for fraction in (0.0, 0.25, 0.5, 0.75):
        moved = exact + fraction * away
        assert (ulp_error(exact=moved, cand=values) == fraction).all()


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
@given(numerator=st.integers(1, 10**6), power=st.integers(-40, 40))
def test_ulp_and_error_agree_with_fifty_digits(fmt: Format, numerator: int, power: int) -> None:
    with mpmath.workdps(50):
        true = mpmath.sqrt(numerator) * mpmath.mpf(10) ** power
        exact = torch.tensor(float(true), dtype=torch.float64)
        exponent = min(max(int(mpmath.floor(mpmath.log(true, 2))), fmt.e_min), fmt.e_max)
        unit = mpmath.mpf(2) ** (exponent - fmt.precision + 1)
        if (
            mpmath.log(true, 2) % 1 > mpmath.mpf(2) ** -50
        ):  # else float64's own rounding may reach the next binade
            assert mpmath.mpf(float(ulp(exact, fmt))) == unit
        if fmt.dtype is not None and abs(true) < fmt.max:
            cand = (1.01 * exact).to(fmt.dtype)
            error = abs(mpmath.mpf(float(cand.double())) - true) / unit
            # The true value in float64 is off by at most half of float64's unit in the last place.
            slack = 2.0 ** (fmt.precision - 53) + 1e-13 * float(error)
            made = float(ulp_error(exact=exact, cand=cand))
            assert math.isnan(made) or made == pytest.approx(float(error), abs=slack)


@pytest.mark.parametrize("fmt", [*EIGHT_BIT, *SIXTEEN_BIT], ids=lambda fmt: fmt.name)
def test_ulp_is_the_gap_to_the_next_value_away_from_zero(fmt: Format) -> None:
    values = every_value(fmt).to(torch.float64)
    positive = values[values.isfinite() & (values >= 0)].unique()
    gaps = positive.diff()
    assert torch.equal(ulp(positive[:-1], fmt), gaps)
    assert torch.equal(ulp(-positive[:-1], fmt), gaps)
    assert torch.equal(ulp(positive[:-1] + 0.75 * gaps, fmt), gaps), (
        "between two values it is that of the lower"
    )
    assert ulp(positive[-1:], fmt) == gaps[-1]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_ulp_beyond_a_formats_range_is_that_of_its_end(fmt: Format) -> None:
    y = torch.tensor(
        [0.0, -0.0, 5e-324, 1.7e308, -1.7e308, math.inf, -math.inf, math.nan], dtype=torch.float64
    )
    top = 2.0 ** (fmt.e_max - fmt.precision + 1)
    assert ulp(y, fmt)[:5].tolist() == [fmt.quantum] * 3 + [top] * 2
    assert ulp(y, fmt)[5:].isnan().all()
    assert ulp(y[:0], fmt).shape == (0,)


@pytest.mark.parametrize("binade", [-1074, -1073, -1030, -1023, -1022, -970, -969, 0, 1, 971, 1023])
def test_ulp_of_float64_is_right_in_every_kind_of_binade(binade: int) -> None:
    start = 2.0**binade
    last = math.nextafter(math.ldexp(1.0, binade + 1) if binade < 1023 else math.inf, 0.0)
    y = torch.tensor([start, -start, last, -last], dtype=torch.float64)
    assert ulp(y, format_of("float64")).tolist() == [math.ulp(start)] * 4


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_ulp_of_float64_agrees_with_the_standard_library(y: float) -> None:
    assert float(ulp(torch.tensor(y, dtype=torch.float64), format_of("float64"))) == math.ulp(y)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_ulp_of_bfloat16_agrees_with_the_formula_in_integers(y: float) -> None:
    fmt = format_of("bfloat16")
    floor_log2 = math.frexp(y)[1] - 1 if y else -5000
    expected = math.ldexp(1.0, min(max(floor_log2, fmt.e_min), fmt.e_max) - fmt.precision + 1)
    assert float(ulp(torch.tensor(y, dtype=torch.float64), fmt)) == expected


float32_tensors = st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3).map(
    lambda values: torch.tensor(values, dtype=torch.float32)
)


@given(float32_tensors)
def test_steps_are_a_metric(points: torch.Tensor) -> None:
    def distance(a: int, b: int) -> int:
        return int(ulp_steps(ref=points[a], cand=points[b]))

    assert distance(0, 1) == distance(1, 0) >= 0
    assert (distance(0, 1) == 0) == bool(points[0] == points[1])
    assert distance(0, 2) <= distance(0, 1) + distance(1, 2)
    low, middle, high = points.argsort().tolist()
    assert distance(low, high) == distance(low, middle) + distance(middle, high), "they add along the line"
    assert int(ulp_steps(ref=-points[0], cand=-points[1])) == distance(0, 1)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_float64_steps_are_exact_until_they_saturate(a: float, b: float) -> None:
    def key(value: float) -> int:
        magnitude = int(torch.tensor(abs(value), dtype=torch.float64).view(torch.int64))
        return -magnitude if math.copysign(1.0, value) < 0 else magnitude

    ref, cand = torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)
    assert int(ulp_steps(ref=ref, cand=cand)) == min(abs(key(a) - key(b)), INT64_MAX)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 40))
def test_walking_n_values_up_is_n_steps(start: float, n: int) -> None:
    ref = torch.tensor([start], dtype=torch.float32)
    cand = ref.clone()
    for _ in range(n):
        cand = torch.nextafter(cand, torch.tensor([math.inf]))
    walked = int(ulp_steps(ref=ref, cand=cand))
    assert walked == n or cand.isinf().all()


def test_a_correctly_rounded_value_is_within_half_an_ulp() -> None:
    exact = torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-3
    assert ulp_error(exact=exact, cand=exact.to(torch.float32)).max() <= 0.5
    truncated = (exact.view(torch.int64) & -(1 << 29)).view(torch.float64).to(torch.float32)
    assert 0.5 < ulp_error(exact=exact, cand=truncated).max() <= 1.0


def test_an_error_that_overflows_float64_is_still_measured() -> None:
    largest = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert float(ulp_error(exact=largest, cand=-largest)) == 2.0**54 - 2


def test_a_difference_of_class_has_no_error_and_no_distance() -> None:
    exact = torch.tensor([1.0, math.nan, math.inf, math.inf, 1.0], dtype=torch.float64)
    cand = torch.tensor([math.nan, 1.0, 1.0, math.inf, math.inf], dtype=torch.bfloat16)
    assert ulp_error(exact=exact, cand=cand).isnan().all()
    steps = ulp_steps(ref=exact.to(torch.bfloat16), cand=cand)
    assert steps.tolist() == [-1, -1, 0x7F80 - 0x3F80, 0, 0x7F80 - 0x3F80]


def test_inputs_are_left_alone_and_may_be_strided_scalar_or_need_gradients() -> None:
    ref = torch.randn(6, 4, dtype=torch.float32, requires_grad=True)
    cand = torch.nextafter(ref.detach(), torch.tensor(math.inf))
    before = ref.detach().clone()
    assert (ulp_steps(ref=ref.T, cand=cand.T) == 1).all()
    assert (ulp_error(exact=ref.double().T, cand=cand.T) > 0).all()
    assert ulp_steps(ref=ref[0, 0], cand=cand[0, 0]).shape == ()
    assert torch.equal(ref, before)


def test_unlike_tensors_are_refused_with_both_sides_shown() -> None:
    one = torch.ones(2)
    with pytest.raises(ComparisonError, match=r"shape \[2\].*shape \[3\]"):
        ulp_steps(ref=one, cand=torch.ones(3))
    with pytest.raises(ComparisonError, match=r"torch\.float32.*torch\.bfloat16"):
        ulp_steps(ref=one, cand=one.bfloat16())
    with pytest.raises(ComparisonError, match=r"exact is torch\.float32"):
        ulp_error(exact=one, cand=one)
    with pytest.raises(ComparisonError, match="int64"):
        ulp_steps(ref=torch.ones(2, dtype=torch.int64), cand=torch.ones(2, dtype=torch.int64))


def test_packed_and_misfitting_codes_are_refused() -> None:
    packed = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(ComparisonError, match="two elements to a byte"):
        ulp_steps(ref=packed, cand=packed)
    wide = torch.tensor([0x1F], dtype=torch.uint8)
    with pytest.raises(ComparisonError, match="0x1f does not fit float4_e2m1"):
        ulp_steps(ref=wide, cand=wide, fmt=format_of("float4_e2m1"))
    with pytest.raises(ComparisonError, match=r"float4_e2m1.*torch\.int32"):
        ulp_steps(ref=wide.int(), cand=wide.int(), fmt=format_of("float4_e2m1"))
