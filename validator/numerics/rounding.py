"""Rounding of float64 values to a narrower format, to nearest or stochastically.

Results stay float64, so that a narrower format can be followed inside a float64 computation. Both
roundings work on float64's bit patterns: adding to the bits below the target's last one and cutting
them off carries into the exponent as it should, and costs a few passes over the data. Elements for
which that is not right (the target's subnormals, overflow, NaN) are rare, and are mended one by one.

Shape legend: * = any shape.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import Format
from validator.numerics.ulp import ulp

__all__ = ["round_nearest", "round_stochastic"]


def round_nearest(y: Tensor, fmt: Format) -> Tensor:
    """Round to the nearest value of a format, ties to even, in a single rounding.

    A cast from float64 to float16 or bfloat16 goes through float32 and rounds twice; this does not.

    Args:
        y: `[*]` float64.
        fmt: the target format.

    Returns:
        `[*]` float64 whose values are the format's; `y` itself where the format is float64. Half an
        ulp or more past the largest finite value overflows: to infinity in a format that has it. In one
        that has none it gives the largest value, as do infinities (how a device overflows there is
        its own choice, not the format's). Signs of zeros are kept, and NaN stays NaN, even where the
        format has neither.

    Raises:
        ComparisonError: `y` is not float64.

    Source:
        IEEE 754-2019, 4.3.1 and 7.4; saturation: OCP 8-bit floating point specification 1.0, section 5.2.
    """
    _demand_float64(y)
    if fmt.name == "float64":
        return y
    y = y.detach()
    if fmt.name == "float32":
        return y.to(torch.float32).to(torch.float64)
    cut = _cut(fmt)
    bits = y.view(torch.int64)
    rounded = (bits >> cut).bitwise_and_(1)  # a tie goes up where the last bit kept is odd
    rounded.add_(bits).add_((1 << (cut - 1)) - 1).bitwise_and_(-1 << cut)
    return _mend(rounded.view(torch.float64), y, fmt, torch.round)


def round_stochastic(y: Tensor, fmt: Format, generator: torch.Generator) -> Tensor:
    """Round to one of the two neighbours in a format, up with the probability that keeps the mean.

    Args:
        y: `[*]` float64.
        fmt: the target format.
        generator: source of the random bits, on the device of `y`.

    Returns:
        `[*]` float64 whose values are the format's; `y` itself where the format is float64. The mean
        over draws is `y` for every finite `y` up to the largest value. A value of the format is kept as
        it is, as are NaN and signs of zeros. Above the largest value the upper neighbour is what the format
        would hold with one more exponent; it overflows as in `round_nearest`.

    Raises:
        ComparisonError: `y` is not float64.

    Source:
        Croci et al., "Stochastic rounding: implementation, error analysis and applications",
        Royal Society Open Science 9 (2022), mode 1.
    """
    _demand_float64(y)
    if fmt.name == "float64":
        return y
    y = y.detach()
    cut = _cut(fmt)
    rounded = torch.empty_like(y, dtype=torch.int64).random_(0, 1 << cut, generator=generator)
    rounded.add_(y.view(torch.int64)).bitwise_and_(-1 << cut)

    def to_either(steps: Tensor) -> Tensor:
        below = steps.floor()
        draw = torch.empty_like(steps).uniform_(generator=generator)
        return below.add_(draw < steps - below)

    return _mend(rounded.view(torch.float64), y, fmt, to_either)


def _cut(fmt: Format) -> int:
    """Count the low bits of a float64 that a normal value of the format has no room for."""
    return 53 - fmt.precision


def _mend(rounded: Tensor, y: Tensor, fmt: Format, to_integer: Callable[[Tensor], Tensor]) -> Tensor:
    """Round again, in place, what cutting bits can't: target subnormals, overflow, infinities and NaN.

    `to_integer` rounds non-negative multiples of the spacing.
    """
    magnitude = y.abs()
    # Written so that NaN is not regular; the zeros, which are many in masked tensors, are.
    regular = (magnitude <= fmt.max).logical_and_((magnitude >= fmt.min_normal).logical_or_(magnitude == 0))
    if bool(regular.all()):
        return rounded
    at = regular.logical_not_()
    left = magnitude[at]
    spacing = ulp(left, fmt)
    mended = to_integer(left / spacing).mul_(spacing)
    mended = torch.where(torch.isinf(left), left, mended)
    mended = torch.where(mended > fmt.max, torch.inf if fmt.has_inf else fmt.max, mended)
    rounded[at] = torch.copysign(mended, y[at])
    return rounded


def _demand_float64(y: Tensor) -> None:
    if y.dtype != torch.float64:
        raise ComparisonError(f"y is {y.dtype}: values are rounded from float64. Convert it with .double()")
