import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.errors import ComparisonError
from validator.numerics.formats import FORMATS, Format, format_of
from validator.numerics.rounding import round_nearest, round_stochastic, round_toward_zero
from validator.numerics.ulp import ulp

NARROWER = [fmt for fmt in FORMATS.values() if fmt.bits < 64]
FEW_VALUES = [fmt for fmt in NARROWER if fmt.bits <= 16]
every_narrower_format = pytest.mark.parametrize("fmt", NARROWER, ids=lambda fmt: fmt.name)
few_values = pytest.mark.parametrize("fmt", FEW_VALUES, ids=lambda fmt: fmt.name)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def magnitudes(fmt: Format) -> torch.Tensor:
    """All finite values >= 0 of a format of up to 16 bits, in float64, ascending."""
    if fmt.dtype is None:
        return tensor(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    codes = torch.arange(1 << (fmt.bits - 1), dtype=torch.int16 if fmt.bits == 16 else torch.uint8)
    values = codes.view(fmt.dtype).to(torch.float64)
    return values[values.isfinite()]


def rounded_fraction(y: float, fmt: Format) -> float:
    """Round to nearest even in exact rational arithmetic, by the definition."""
    exponent = max(math.frexp(y)[1] - 1, fmt.e_min) if y else fmt.e_min
    spacing = Fraction(2) ** (exponent - fmt.precision + 1)
    result = round(Fraction(y) / spacing) * spacing  # Python rounds fractions half to even
    if abs(result) > Fraction(fmt.max):
        return math.copysign(math.inf if fmt.has_inf else fmt.max, y)
    return math.copysign(float(result), y)


def like(y: float, fmt: Format) -> float:
    """Bring an arbitrary float64 to where the format's rounding is interesting: near its range."""
    if y == 0:
        return y
    fraction, exponent = math.frexp(y)
    span = fmt.e_max - fmt.e_min + fmt.precision + 6
    return math.ldexp(fraction, fmt.e_min - fmt.precision - 2 + exponent % span)


@every_narrower_format
@given(y=st.floats(allow_nan=False, allow_infinity=False))
def test_nearest_agrees_with_rational_arithmetic(fmt: Format, y: float) -> None:
    for value in (y, like(y, fmt)):
        result = float(round_nearest(tensor(value), fmt))
        assert result == rounded_fraction(value, fmt)
        assert math.copysign(1, result) == math.copysign(1, value)


@few_values
def test_nearest_is_right_around_every_midpoint_and_never_rounds_twice(fmt: Format) -> None:
    values = magnitudes(fmt)
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    # The nudge is far below float32's precision: a cast through float32 would see a tie here.
    nudge = (high - low) * 2.0**-40
    even_is_low = torch.arange(values.numel() - 1) % 2 == 0
    for sign in (1, -1):
        assert torch.equal(round_nearest(sign * (middle + nudge), fmt), sign * high)
        assert torch.equal(round_nearest(sign * (middle - nudge), fmt), sign * low)
        assert torch.equal(round_nearest(sign * middle, fmt), sign * torch.where(even_is_low, low, high))
        assert torch.equal(round_nearest(sign * values, fmt), sign * values)


def test_the_stimulus_would_show_a_double_rounding() -> None:
    above_tie = tensor(1 + 2.0**-8 + 2.0**-40)
    assert float(above_tie.to(torch.float32).to(torch.bfloat16)) == 1.0
    assert float(round_nearest(above_tie, format_of("bfloat16"))) == 1 + 2.0**-7


@every_narrower_format
def test_nearest_overflows_from_half_an_ulp_past_the_largest_value_on(fmt: Format) -> None:
    half = 2.0 ** (fmt.e_max - fmt.precision)
    beyond = math.inf if fmt.has_inf else fmt.max
    below = math.nextafter(fmt.max + half, 0.0)
    y = tensor(below, fmt.max + half, 4 * fmt.max, math.inf)
    assert round_nearest(y, fmt).tolist() == [fmt.max, beyond, beyond, beyond]
    assert round_nearest(-y, fmt).tolist() == [-fmt.max, -beyond, -beyond, -beyond]


@every_narrower_format
def test_zeros_keep_their_sign_and_nan_stays_nan(fmt: Format) -> None:
    payloads = torch.tensor([0x7FF8_0000_0000_0000, 0x7FF0_0000_0000_0001, -1], dtype=torch.int64)
    y = torch.cat((tensor(0.0, -0.0), payloads.view(torch.float64)))
    for result in (round_nearest(y, fmt), round_stochastic(y, fmt, generator())):
        assert (result[:2] == 0).all()
        assert result[:2].signbit().tolist() == [False, True]
        assert result[2:].isnan().all()


@few_values
def test_stochastic_keeps_every_value_of_the_format(fmt: Format) -> None:
    values = magnitudes(fmt)
    values = torch.cat((values, -values))
    for seed in range(5):
        assert torch.equal(round_stochastic(values, fmt, generator(seed)), values)


@every_narrower_format
def test_stochastic_goes_to_one_of_the_two_neighbours_with_the_probability_of_the_distance(
    fmt: Format,
) -> None:
    draws = 40_000
    inside = [Fraction(fmt.quantum) * n for n in (Fraction(1, 4), Fraction(5, 2), Fraction(99, 100))]
    inside += [Fraction(fmt.min_normal) * (1 + Fraction(fmt.unit_roundoff) * n) for n in (Fraction(1, 8), 1)]
    inside += [1 + Fraction(fmt.unit_roundoff) * Fraction(7, 5)]
    inside += [Fraction(fmt.max) - Fraction(2) ** (fmt.e_max - fmt.precision + 1) * Fraction(1, 3)]
    for wanted in inside:
        y = float(wanted)
        spacing = 2.0 ** (max(math.frexp(y)[1] - 1, fmt.e_min) - fmt.precision + 1)
        low = math.floor(y / spacing) * spacing
        share = y / spacing - math.floor(y / spacing)
        for sign in (1, -1):
            result = round_stochastic(torch.full((draws,), sign * y, dtype=torch.float64), fmt, generator(7))
            up = result == sign * (low + spacing)
            assert (up | (result == sign * low)).all()
            # Six standard deviations of a share of `draws` trials.
            assert float(up.double().mean()) == pytest.approx(share, abs=6 * math.sqrt(0.25 / draws))


@every_narrower_format
def test_stochastic_is_unbiased_over_many_different_values(fmt: Format) -> None:
    y = torch.randn(200_000, dtype=torch.float64, generator=generator(1)).clamp_(-fmt.max, fmt.max)
    result = round_stochastic(y, fmt, generator(2))
    error = result - y
    standard_error = float(error.std()) / math.sqrt(y.numel())
    assert abs(float(error.mean())) < 6 * standard_error
    assert standard_error > 0
    truncated = torch.where(y.abs() >= fmt.min_normal, round_nearest(y * (1 - fmt.unit_roundoff), fmt), 0.0)
    assert abs(float(((truncated - y) * y.sign()).mean())) > 6 * standard_error, "a bias would be seen"


@every_narrower_format
def test_stochastic_overflows_only_above_the_largest_value(fmt: Format) -> None:
    spacing = 2.0 ** (fmt.e_max - fmt.precision + 1)
    beyond = math.inf if fmt.has_inf else fmt.max
    past = round_stochastic(tensor(fmt.max + spacing / 2).expand(2000), fmt, generator())
    assert set(past.tolist()) == {fmt.max, beyond}
    far = round_stochastic(tensor(4 * fmt.max, -4 * fmt.max, math.inf, -math.inf), fmt, generator())
    assert far.tolist() == [beyond, -beyond, beyond, -beyond]


@given(y=st.floats(allow_nan=False, allow_infinity=False), seed=st.integers(0, 2**32))
def test_stochastic_float32_is_a_neighbour_of_any_value(y: float, seed: int) -> None:
    fmt = format_of("float32")
    for value in (y, like(y, fmt)):
        result = float(round_stochastic(tensor(value), fmt, generator(seed)))
        nearest = float(round_nearest(tensor(value), fmt))
        ends = {nearest}
        if nearest != value and abs(value) <= fmt.max:
            toward = torch.tensor(math.copysign(math.inf, value - nearest))
            ends.add(float(torch.nextafter(torch.tensor(nearest), toward)))
        elif abs(value) > fmt.max:
            ends = {math.copysign(fmt.max, value), math.copysign(math.inf, value)}
        assert result in ends


def test_the_same_generator_state_gives_the_same_rounding_and_another_gives_another() -> None:
    y = torch.rand(100, dtype=torch.float64, generator=generator())
    first, again, other = (round_stochastic(y, format_of("bfloat16"), generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_elements_are_rounded_independently(name: str) -> None:
    fmt = format_of(name)
    y = torch.full((100_000,), 1 + fmt.unit_roundoff, dtype=torch.float64)
    error = round_stochastic(y, fmt, generator(5)) - y
    error = (error - error.mean()) / error.std()
    # 16,384 apart is where two elements share a draw of float32's.
    for lag in (1, 2, 3, 64, 1 << 14, 1 << 15):
        assert abs(float((error[lag:] * error[:-lag]).mean())) < 6 / math.sqrt(y.numel() - lag)


@every_narrower_format
def test_any_shape_and_stride_is_rounded_and_the_input_left_alone(fmt: Format) -> None:
    y = torch.randn(4, 6, dtype=torch.float64, generator=generator(), requires_grad=True)
    before = y.detach().clone()
    assert torch.equal(round_nearest(y.T, fmt), round_nearest(y, fmt).T)
    assert round_nearest(y.T, fmt).stride() == y.T.stride()
    assert round_stochastic(y.T[::2], fmt, generator()).shape == (3, 4)
    for empty_or_scalar in (y[:0], y[0, 0], y[0, 0] * 1e-300, y[0, 0] * math.nan):
        assert round_nearest(empty_or_scalar, fmt).shape == empty_or_scalar.shape
        assert round_stochastic(empty_or_scalar, fmt, generator()).shape == empty_or_scalar.shape
    assert torch.equal(y, before)


def test_float64_is_kept_as_it_is_and_other_inputs_are_refused() -> None:
    y = tensor(0.1, 1e-320)
    assert round_nearest(y, format_of("float64")) is y
    assert round_stochastic(y, format_of("float64"), generator()) is y
    with pytest.raises(ComparisonError, match=r"torch\.float32"):
        round_nearest(y.float(), format_of("bfloat16"))
    with pytest.raises(ComparisonError, match=r"torch\.float32"):
        round_stochastic(y.float(), format_of("bfloat16"), generator())


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("bfloat16", 1 + 2**-7 - 2**-40, 1.0),
        ("bfloat16", 1 + 2**-7, 1 + 2**-7),
        ("float16", 1.75 * 2**-24, 2**-24),  # a subnormal
        ("float16", 0.75 * 2**-24, 0.0),
        ("float16", 1e9, 65504.0),
        ("float16", float("inf"), float("inf")),
        ("float8_e4m3fn", 1e9, 448.0),
        ("float32", 1 + 2**-24 + 2**-30, 1.0),
    ],
)
def test_rounding_toward_zero_never_grows(sign: float, name: str, value: float, expected: float) -> None:
    rounded = round_toward_zero(torch.tensor([sign * value], dtype=torch.float64), FORMATS[name])
    assert rounded.item() == sign * expected
    assert rounded.signbit().item() == (sign < 0)


@few_values
def test_toward_zero_is_right_between_all_neighbours_of_a_format(fmt: Format) -> None:
    values = magnitudes(fmt)
    low, high = values[:-1], values[1:]
    nudge = (high - low) * 2.0**-40
    for sign in (1, -1):
        assert torch.equal(round_toward_zero(sign * values, fmt), sign * values)
        for between in (low + nudge, (low + high) / 2, high - nudge):
            assert torch.equal(round_toward_zero(sign * between, fmt), sign * low)


@every_narrower_format
@given(y=st.floats(allow_nan=False, allow_infinity=False))
def test_toward_zero_agrees_with_rational_arithmetic(fmt: Format, y: float) -> None:
    for value in (y, like(y, fmt)):
        exponent = max(math.frexp(value)[1] - 1, fmt.e_min) if value else fmt.e_min
        spacing = Fraction(2) ** (exponent - fmt.precision + 1)
        cut = min(abs(Fraction(value)) // spacing * spacing, Fraction(fmt.max))
        result = round_toward_zero(tensor(value), fmt)
        assert Fraction(float(result)) == (-cut if value < 0 else cut)
        assert bool(result.signbit()) == (math.copysign(1, value) < 0)


@every_narrower_format
@given(digits=st.integers(1, 10**15), power=st.integers(-8, 8))
def test_nearest_agrees_with_mpmath_working_in_the_formats_precision(
    fmt: Format, digits: int, power: int
) -> None:
    y = digits * 2.0**-50 * 10.0**power
    with mpmath.workprec(fmt.precision):
        rounded = +mpmath.mpf(y)
    if fmt.min_normal <= y and rounded <= fmt.max:  # mpmath's numbers have no subnormals and no end
        assert mpmath.mpf(float(round_nearest(tensor(y), fmt))) == rounded


@every_narrower_format
@given(
    pair=st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), seed=st.integers(0, 2**32 - 1)
)
def test_roundings_keep_their_laws(fmt: Format, pair: tuple[float, float], seed: int) -> None:
    y = tensor(*sorted(like(value, fmt) for value in pair))
    for rounding in (round_nearest, round_toward_zero):
        once = rounding(y, fmt)
        assert torch.equal(rounding(once, fmt), once), "what is rounded is a value of the format"
        assert torch.equal(rounding(-y, fmt), -once), "signs are treated alike"
        assert bool(once[0] <= once[1]), "order is kept"
    inside = y.abs() <= fmt.max
    spacing = ulp(y, fmt)
    assert bool(((round_nearest(y, fmt) - y).abs() <= spacing / 2)[inside].all())
    assert bool(((round_toward_zero(y, fmt) - y).abs() < spacing)[inside].all())
    assert bool((round_toward_zero(y, fmt).abs() <= y.abs()).all())
    stochastic = round_stochastic(y, fmt, generator(seed))
    assert bool(((stochastic - y).abs() < spacing)[inside].all())
