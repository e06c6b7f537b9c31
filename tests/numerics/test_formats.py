import dataclasses
import math

import pytest
import torch
from torch import nn

from validator.errors import ComparisonError
from validator.numerics.formats import FORMATS, Format, format_of, weights_dtype

SMALL = [fmt for fmt in FORMATS.values() if fmt.dtype is not None and fmt.bits <= 16]


def every_value(fmt: Format) -> torch.Tensor:
    """All 2^bits values of a format of 8 or 16 bits in float64, in the order of their bit patterns."""
    codes = torch.arange(1 << fmt.bits, dtype=torch.int32)
    narrow = codes.to(torch.uint8) if fmt.bits == 8 else codes.to(torch.int16)
    return narrow.view(fmt.dtype).to(torch.float64)


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_every_constant_of_a_small_format_is_what_its_bit_patterns_decode_to(fmt: Format) -> None:
    values = every_value(fmt)
    finite = values[values.isfinite()]
    positive = finite[finite > 0].sort().values
    assert positive[-1] == fmt.max
    assert math.frexp(fmt.max)[1] - 1 == fmt.e_max
    assert positive[0] == fmt.quantum
    spacing = positive.diff()
    below = positive[:-1] < 2 * fmt.min_normal
    assert (spacing[below] == fmt.quantum).all()
    assert (spacing[~below] > fmt.quantum).all()
    one_up = positive[positive > 1][0] - 1
    assert one_up == 2.0 ** (1 - fmt.precision) == 2 * fmt.unit_roundoff
    assert bool(values.isinf().any()) == fmt.has_inf
    assert bool(values.isnan().any()) == fmt.has_nan
    assert bool((values.signbit() & (values == 0)).any()) == fmt.has_negative_zero


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_the_last_magnitude_is_the_last_bit_pattern_that_is_no_nan(fmt: Format) -> None:
    magnitudes = every_value(fmt)[: 1 << (fmt.bits - 1)]
    assert not magnitudes[: fmt.last_magnitude + 1].isnan().any()
    assert magnitudes[fmt.last_magnitude + 1 :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_wide_formats_agree_with_torch(dtype: torch.dtype) -> None:
    fmt, info = format_of(dtype), torch.finfo(dtype)
    assert (fmt.max, fmt.min_normal, fmt.bits) == (info.max, info.tiny, info.bits)
    assert fmt.unit_roundoff == info.eps / 2
    assert torch.tensor(math.inf, dtype=dtype).view(getattr(torch, f"int{fmt.bits}")) == fmt.last_magnitude


def test_a_dtype_is_found_by_itself_and_by_its_name() -> None:
    assert format_of(torch.bfloat16) is format_of("bfloat16") is format_of("torch.bfloat16")
    assert format_of("float4_e2m1fn_x2") is format_of("float4_e2m1")
    for fmt in FORMATS.values():
        assert format_of(fmt.name) is fmt


@pytest.mark.parametrize("dtype", [torch.int64, "float128", torch.complex64], ids=str)
def test_an_unknown_dtype_is_named_together_with_the_known_ones(dtype: torch.dtype | str) -> None:
    with pytest.raises(ComparisonError) as caught:
        format_of(dtype)
    assert repr(str(dtype).removeprefix("torch.")) in str(caught.value)
    assert "float8_e5m2fnuz" in str(caught.value)


def test_a_format_can_not_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        format_of("float32").precision = 23  # type: ignore[misc]


def model_of(*tensors: torch.Tensor, buffer: torch.Tensor | None = None) -> nn.Module:
    model = nn.Module()
    for number, tensor in enumerate(tensors):
        model.register_parameter(f"p{number}", nn.Parameter(tensor, requires_grad=False))
    model.register_buffer("table", buffer)
    return model


def test_a_model_computes_in_the_format_of_most_elements_and_not_of_most_parameters() -> None:
    few, many = torch.zeros(3, dtype=torch.float32), torch.zeros(99, dtype=torch.float16)
    assert weights_dtype(model_of(few, few, many)) is torch.float16
    assert weights_dtype(model_of(few, few)) is torch.float32


def test_codes_in_float8_are_no_format_to_compute_in() -> None:
    codes, scales = torch.zeros(64, dtype=torch.float8_e4m3fn), torch.ones(4, dtype=torch.bfloat16)
    assert weights_dtype(model_of(codes, scales)) is torch.bfloat16
    assert weights_dtype(model_of(codes, torch.zeros(64, dtype=torch.int8))) is None


def test_buffers_say_nothing_of_the_format() -> None:
    table = torch.zeros(999, dtype=torch.float32)
    assert weights_dtype(model_of(torch.zeros(4, dtype=torch.bfloat16), buffer=table)) is torch.bfloat16
    assert weights_dtype(model_of(buffer=table)) is None
