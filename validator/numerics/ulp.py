"""Distance between floating-point values in units in the last place (ULP).

Two numbers, never one: `ulp_error` is a difference measured in the spacing of the format at the exact
value, and `ulp_steps` counts the representable values between two values of one format.

Shape legend: * = any shape, equal on both sides.
"""

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import Format, format_of

__all__ = ["ulp", "ulp_error", "ulp_steps"]

_FRACTION_BITS = 52  # float64's
_EXPONENT_BIAS = 1023
_EXPONENT_FIELD = 0x7FF
_SIGNED_INTEGER = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_INT64_MAX = torch.iinfo(torch.int64).max


def ulp(y: Tensor, fmt: Format) -> Tensor:
    """Measure the spacing of a format's values at `y`.

    `ulp(y) = 2^(min(max(floor(log2|y|), e_min), e_max) - p + 1)`, exact: read off the exponent bits.

    Args:
        y: `[*]` float64.
        fmt: the format whose spacing is asked for.

    Returns:
        `[*]` float64, a power of two: the format's quantum at 0 and among its subnormals, the top
        binade's spacing beyond its largest value, NaN at infinity and NaN.

    Raises:
        ComparisonError: `y` is not float64.

    Source:
        Goldberg's ulp, as in Muller, "On the definition of ulp(x)", INRIA RR-5504 (2005).
    """
    _demand_float64(y, "y")
    field = (y.detach().view(torch.int64) >> _FRACTION_BITS) & _EXPONENT_FIELD
    special = field == _EXPONENT_FIELD
    field.clamp_(fmt.e_min + _EXPONENT_BIAS, fmt.e_max + _EXPONENT_BIAS).sub_(fmt.precision - 1)
    bits = field << _FRACTION_BITS
    if fmt.e_min - fmt.precision + 1 < 1 - _EXPONENT_BIAS:
        # Only float64's own ulp can be a float64 subnormal, whose value is a bit of the fraction.
        bits = torch.where(field > 0, bits, 1 << (field + (_FRACTION_BITS - 1)).clamp_(0, _FRACTION_BITS))
    return bits.view(torch.float64).masked_fill_(special, torch.nan)


def ulp_error(*, exact: Tensor, cand: Tensor) -> Tensor:
    """Measure how far a candidate is from the exact value, in ulp of the candidate's format.

    Args:
        exact: `[*]` float64, the exact values.
        cand: `[*]` candidate, any dtype of `numerics.formats` with one element to an item.

    Returns:
        `[*]` float64, not negative; `|cand - exact| / ulp(exact)`. A correctly rounded value is within
        1/2. NaN where either side is infinite or NaN: a difference of class has no distance.

    Raises:
        ComparisonError: shapes differ, `exact` is not float64, or `cand` is in no known format.

    Source:
        Muller, "On the definition of ulp(x)", INRIA RR-5504 (2005).
    """
    _demand_float64(exact, "exact")
    _demand_same_shape(exact, cand, "exact")
    unit = ulp(exact, _element_format(cand))
    value = cand.detach().to(torch.float64)
    # Both are divided first, which is exact: the difference of two float64 values can overflow.
    error = (value / unit).sub_(exact.detach() / unit).abs_()
    return error.masked_fill_(~torch.isfinite(value), torch.nan)


def ulp_steps(*, ref: Tensor, cand: Tensor, fmt: Format | None = None) -> Tensor:
    """Count the representable values from `ref` to `cand`, element by element.

    Args:
        ref: `[*]` reference, any floating format of `numerics.formats`.
        cand: `[*]` candidate, same shape and format.
        fmt: given, `ref` and `cand` are uint8 bit patterns of this format of at most 8 bits, one to a
            byte; float4, which torch packs two to a byte, can only be counted so.

    Returns:
        `[*]` int64. +0 and -0 are 0 apart, two NaNs are 0 apart; where one side only is NaN
        it is -1 (no distance). Infinity is one step past the largest finite value. float64 saturates.

    Raises:
        ComparisonError: shapes or formats differ, or the bit patterns don't fit the format.

    Source:
        Muller, "On the definition of ulp(x)", INRIA RR-5504 (2005).
    """
    _demand_same_shape(ref, cand, "ref")
    if ref.dtype != cand.dtype:
        raise ComparisonError(
            f"ref is {ref.dtype} and cand is {cand.dtype}: steps are counted inside one format. Round the "
            "reference to the candidate's format first, or measure ulp_error against a float64 reference"
        )
    fmt = _element_format(ref) if fmt is None else _code_format(fmt, ref, cand)
    ref_key, ref_nan = _ordered(ref, fmt)
    cand_key, cand_nan = _ordered(cand, fmt)
    steps = ref_key.sub_(cand_key).abs_()
    if fmt.bits == 64:
        # |a - b| wraps exactly where the signs differ and |a| + |b| passes 2^63 - 1.
        opposite = (ref < 0) != (cand < 0)
        wrapped = opposite & (_magnitude(ref, fmt) > _INT64_MAX - _magnitude(cand, fmt))
        steps.masked_fill_(wrapped, _INT64_MAX)
    steps.masked_fill_(ref_nan & cand_nan, 0)
    return steps.masked_fill_(ref_nan ^ cand_nan, -1)


def _ordered(values: Tensor, fmt: Format) -> tuple[Tensor, Tensor]:
    """Map values to integers that are one apart where the values are neighbours; also say which are NaN."""
    codes = _codes(values)
    magnitude = _magnitude(values, fmt)
    negative = ((codes >> (fmt.bits - 1)) & 1).to(torch.bool)
    is_nan = magnitude > fmt.last_magnitude
    if not fmt.has_negative_zero:
        is_nan |= negative & (magnitude == 0)
    return torch.where(negative, -magnitude, magnitude), is_nan


def _magnitude(values: Tensor, fmt: Format) -> Tensor:
    return _codes(values) & ((1 << (fmt.bits - 1)) - 1)


def _codes(values: Tensor) -> Tensor:
    """Bit patterns as int64; whatever stands above a format's own bits is masked by whoever reads them."""
    values = values.detach()
    if values.dtype.is_floating_point:
        values = values.view(_SIGNED_INTEGER[values.dtype.itemsize * 8])
    return values.to(torch.int64)


def _element_format(values: Tensor) -> Format:
    fmt = format_of(values.dtype)
    if fmt.dtype is None:
        raise ComparisonError(
            f"{values.dtype} holds two elements to a byte: unpack it to one uint8 code an element and give "
            f"ulp_steps the format {fmt.name!r}, or dequantise it with its scales"
        )
    return fmt


def _code_format(fmt: Format, *codes: Tensor) -> Format:
    for side in codes:
        if side.dtype != torch.uint8 or fmt.bits > 8:
            raise ComparisonError(
                f"bit patterns of {fmt.name} ({fmt.bits} bits) were given as {side.dtype}: formats of at "
                "most 8 bits are given as uint8, wider ones as floating tensors without fmt"
            )
        if fmt.bits < 8 and side.numel() and int(side.max()) >= 1 << fmt.bits:
            raise ComparisonError(
                f"bit pattern {int(side.max()):#x} does not fit {fmt.name} ({fmt.bits} bits): give one "
                "element to a byte, in its low bits"
            )
    return fmt


def _demand_float64(values: Tensor, name: str) -> None:
    if values.dtype != torch.float64:
        raise ComparisonError(
            f"{name} is {values.dtype}: exact values are float64. Convert it with .double()"
        )


def _demand_same_shape(first: Tensor, cand: Tensor, name: str) -> None:
    if first.shape != cand.shape:
        raise ComparisonError(
            f"{name} has shape {list(first.shape)} and cand has shape {list(cand.shape)}: they must be equal"
        )
