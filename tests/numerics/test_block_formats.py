import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.block_formats import (
    MXFP4,
    MXFP8_E4M3,
    MXFP8_E5M2,
    BlockFormat,
    BlockScaled,
    block_ulp,
    dequantise,
    quantise,
    round_blocks,
    unpack_float4,
)

FORMATS = pytest.mark.parametrize("fmt", [MXFP8_E4M3, MXFP8_E5M2, MXFP4], ids=lambda fmt: fmt.name)
ROWS = st.lists(st.floats(-1e6, 1e6) | st.floats(-1e-6, 1e-6), min_size=32, max_size=32)


def row(*values: float) -> Tensor:
    """A block that begins with these values and goes on with zeros."""
    return torch.tensor([*values, *[0.0] * (32 - len(values))], dtype=torch.float64)


def element_values(fmt: BlockFormat) -> list[float]:
    """Every finite value of the element format that is not negative, from its definition."""
    element = fmt.element
    steps = 1 << (element.precision - 1)
    normal = [
        (steps + m) * 2.0 ** (e - element.precision + 1)
        for e in range(element.e_min, element.e_max + 1)
        for m in range(steps)
    ]
    return [v for v in [m * element.quantum for m in range(steps)] + normal if v <= element.max]


def nearest_by_search(y: float, scale: float, fmt: BlockFormat) -> float:
    """The nearest value of a block with this scale, found among all of them; ties to the even code."""
    values = element_values(fmt)
    best = min(range(len(values)), key=lambda code: (abs(values[code] - abs(y) / scale), code % 2))
    return math.copysign(values[best] * scale, y)


@FORMATS
@given(values=ROWS)
def test_every_element_is_the_nearest_of_its_block(fmt: BlockFormat, values: list[float]) -> None:
    y = torch.tensor(values, dtype=torch.float64)
    made = quantise(y, fmt)
    greatest = max(map(abs, values))
    exponent = -127 if greatest == 0 else max(-127, math.frexp(greatest)[1] - 1 - fmt.element.e_max)
    assert made.scales.tolist() == [exponent + 127]
    wanted = [nearest_by_search(v, 2.0**exponent, fmt) for v in values]
    assert dequantise(made).tolist() == wanted


@FORMATS
@given(values=ROWS)
def test_rounding_again_changes_nothing(fmt: BlockFormat, values: list[float]) -> None:
    made = quantise(torch.tensor(values, dtype=torch.float64), fmt)
    once = dequantise(made)
    assert torch.equal(round_blocks(once, fmt, scales=made.scales), once)


@FORMATS
@given(values=ROWS)
def test_an_error_is_at_most_half_an_ulp_where_nothing_saturates(
    fmt: BlockFormat, values: list[float]
) -> None:
    y = torch.tensor(values, dtype=torch.float64)
    made = quantise(y, fmt)
    inside = y.abs() <= fmt.element.max * 2.0 ** (int(made.scales) - 127)
    error = (dequantise(made) - y).abs() / block_ulp(y, fmt, made.scales)
    assert bool((error[inside] <= 0.5).all())


def test_what_is_beyond_the_largest_element_saturates() -> None:
    # floor(log2 500) - 8 = 0: the scale is 1, and e4m3fn ends at 448.
    assert round_blocks(row(500.0, -500.0), MXFP8_E4M3)[:2].tolist() == [448.0, -448.0]
    # floor(log2 7) - 2 = 0, and e2m1 ends at 6.
    assert round_blocks(row(7.0), MXFP4)[0].item() == 6.0


def test_a_given_scale_is_used() -> None:
    scales = torch.tensor([129], dtype=torch.uint8)
    assert round_blocks(row(7.0, 1.0, 3.0), MXFP4, scales=scales)[:3].tolist() == [8.0, 0.0, 4.0]
    as_dtype = scales.view(torch.float8_e8m0fnu)
    assert round_blocks(row(7.0), MXFP4, scales=as_dtype)[0].item() == 8.0
    assert block_ulp(row(7.0), MXFP4, scales)[:2].tolist() == [2.0, 2.0]


def test_scales_end_at_those_of_e8m0() -> None:
    assert quantise(row(1e300), MXFP4).scales.item() == 254
    assert round_blocks(row(1e300), MXFP4)[0].item() == 6.0 * 2.0**127
    assert quantise(row(2.0**-140), MXFP4).scales.item() == 0
    assert quantise(row(0.0), MXFP4).scales.item() == 0


@pytest.mark.parametrize(
    ("fmt", "nan", "infinity"),
    [(MXFP8_E4M3, math.nan, math.nan), (MXFP8_E5M2, math.nan, math.inf)],
    ids=["e4m3", "e5m2"],
)
def test_nan_and_infinity_stay_in_their_element(fmt: BlockFormat, nan: float, infinity: float) -> None:
    made = round_blocks(row(math.nan, math.inf, 1.0), fmt)
    assert str(made[:3].tolist()) == str([nan, infinity, 1.0])


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_a_block_of_elements_without_nan_becomes_nan_as_a_whole_and_its_neighbour_does_not(
    special: float,
) -> None:
    made = quantise(torch.stack((row(special, 1.0), row(1.0))), MXFP4)
    assert made.scales.tolist() == [[255], [125]]
    values = dequantise(made)
    assert bool(values[0].isnan().all())
    assert values[1, 0].item() == 1.0


def test_a_negative_zero_keeps_its_sign() -> None:
    for fmt in (MXFP8_E4M3, MXFP8_E5M2, MXFP4):
        assert math.copysign(1.0, round_blocks(row(-0.0, 1.0), fmt)[0].item()) == -1.0


def test_packed_float4_is_unpacked_low_half_first() -> None:
    packed = torch.tensor([[0x21, 0xF0]], dtype=torch.uint8)
    assert unpack_float4(packed).tolist() == [[1, 2, 0, 15]]
    assert unpack_float4(packed.view(torch.float4_e2m1fn_x2)).tolist() == [[1, 2, 0, 15]]
    with pytest.raises(ComparisonError, match=r"packed float4 was given as torch\.int32"):
        unpack_float4(packed.int())


def test_what_does_not_fit_is_refused_with_both_shapes() -> None:
    with pytest.raises(ComparisonError, match=r"shape \[33\] has no whole blocks of 32"):
        quantise(torch.zeros(33, dtype=torch.float64), MXFP4)
    with pytest.raises(ComparisonError, match=r"y is torch.float32"):
        quantise(torch.zeros(32), MXFP4)
    with pytest.raises(ComparisonError, match=r"scales are torch.uint8 \[2\].*have uint8 scales \[1\]"):
        block_ulp(row(1.0), MXFP4, torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(ComparisonError, match=r"bit pattern 0x10 does not fit 4 bits"):
        BlockScaled(
            fmt=MXFP4,
            codes=torch.full((32,), 16, dtype=torch.uint8),
            scales=torch.zeros(1, dtype=torch.uint8),
        )


@FORMATS
def test_every_code_under_every_scale_is_its_value_and_survives_being_rounded_again(fmt: BlockFormat) -> None:
    element = fmt.element
    values = element_values(fmt)
    codes = torch.arange(1 << element.bits, dtype=torch.uint8)
    blocks = codes.numel() // fmt.block or 1
    row_of_codes = codes.repeat(2) if codes.numel() < fmt.block else codes
    made = BlockScaled(
        fmt=fmt,
        codes=row_of_codes.expand(256, -1).contiguous(),
        scales=torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, blocks).contiguous(),
    )
    exact = dequantise(made)
    assert bool(exact[255].isnan().all())
    is_negative = row_of_codes >= 1 << (element.bits - 1)
    for scale in range(255):
        finite = exact[scale].isfinite()
        magnitude = (row_of_codes & ((1 << (element.bits - 1)) - 1))[finite].tolist()
        wanted = torch.tensor([values[code] for code in magnitude], dtype=torch.float64) * 2.0 ** (
            scale - 127
        )
        assert torch.equal(exact[scale][finite], torch.where(is_negative[finite], -wanted, wanted))
        again = quantise(exact[scale][None], fmt, scales=made.scales[scale][None])
        same = again.codes[0] == row_of_codes
        assert bool(same[finite].all())


@FORMATS
def test_the_block_ulp_of_every_element_is_the_gap_to_the_next(fmt: BlockFormat) -> None:
    values = torch.tensor(element_values(fmt), dtype=torch.float64)
    gaps = values.diff()
    for scale in (0, 1, 100, 127, 200, 254):
        for start in range(0, len(gaps), fmt.block):
            taken = values[:-1][start : start + fmt.block]
            y = torch.zeros(fmt.block, dtype=torch.float64)
            y[: len(taken)] = taken * 2.0 ** (scale - 127)
            made = block_ulp(y, fmt, torch.tensor([scale], dtype=torch.uint8))
            assert torch.equal(made[: len(taken)], gaps[start : start + fmt.block] * 2.0 ** (scale - 127))
