"""Rounding of float64 values to a narrower format: to nearest, toward zero or stochastically.

Results stay float64, so that a narrower format can be followed inside a float64 computation. Both
roundings work on float64's bit patterns: adding to the bits below the target's last one and cutting
them off carries into the exponent as it should, and costs a few passes over the data. Elements for
which that is not right (the target's subnormals, overflow, NaN) are rare, and are mended apart.

Shape legend: * = any shape.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import Format
from validator.numerics.rounding_kernels import nearest, stochastic, target_of
from validator.numerics.ulp import ulp

__all__ = ["round_nearest", "round_stochastic", "round_toward_zero"]

_CACHED_ELEMENTS = 1 << 15  # a CPU's block: several passes over 256 KiB stay in its second-level cache


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
    if fmt.name == "float32":
        return y.detach().to(torch.float32).to(torch.float64)
    if y.device.type == "cpu":
        return _compiled(y, nearest, target_of(fmt))
    cut = _cut(fmt)

    def round_block(block: Tensor, result: Tensor) -> None:
        bits = block.view(torch.int64)
        rounded = result.view(torch.int64)
        torch.bitwise_right_shift(bits, cut, out=rounded)
        rounded.bitwise_and_(1)  # a tie goes up where the last bit kept is odd
        rounded.add_(bits).add_((1 << (cut - 1)) - 1).bitwise_and_(-1 << cut)
        _mend(block, result, fmt, torch.round)

    return _in_blocks(y, round_block)


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
    if y.device.type == "cpu":
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
        return _compiled(y, stochastic, target_of(fmt), seed)
    cut = _cut(fmt)

    def to_either(steps: Tensor) -> Tensor:
        below = steps.floor()
        draw = torch.empty_like(steps).uniform_(generator=generator)
        return below.add_(draw < steps - below)

    def round_block(block: Tensor, result: Tensor) -> None:
        rounded = _random_bits_(result.view(torch.int64), cut, generator)
        rounded.add_(block.view(torch.int64)).bitwise_and_(-1 << cut)
        _mend(block, result, fmt, to_either)

    return _in_blocks(y, round_block)


def round_toward_zero(y: Tensor, fmt: Format) -> Tensor:
    """Round to the nearest value of a format that is no larger in magnitude: cut the bits off.

    Args:
        y: `[*]` float64.
        fmt: the target format.

    Returns:
        `[*]` float64 whose values are the format's; `y` itself where the format is float64. What is finite
        stays finite: beyond the largest value it becomes that value. Signs of zeros are kept, as are NaN and,
        in a format that has them, infinities.

    Raises:
        ComparisonError: `y` is not float64.

    Source:
        IEEE 754-2019, 4.3.2 and 7.4.
    """
    _demand_float64(y)
    if fmt.name == "float64":
        return y
    cut = _cut(fmt)

    def round_block(block: Tensor, result: Tensor) -> None:
        finite = torch.where(block.isfinite(), block.clamp(-fmt.max, fmt.max), block)
        torch.bitwise_and(finite.view(torch.int64), -1 << cut, out=result.view(torch.int64))
        _mend(finite, result, fmt, torch.floor)

    return _in_blocks(y, round_block)


def _cut(fmt: Format) -> int:
    """Count the low bits of a float64 that a normal value of the format has no room for."""
    return 53 - fmt.precision


def _compiled(y: Tensor, run: Callable[..., None], *options: Any) -> Tensor:
    """Round by a compiled loop, into a tensor with the strides of an elementwise operator's result."""
    y = y.detach()
    flat = y.reshape(-1)
    rounded = torch.empty_like(flat)
    run(*[view.numpy() for x in (flat, rounded) for view in (x, x.view(torch.int64))], *options)
    rounded = rounded.view(y.shape)
    return rounded if y.is_contiguous() else torch.empty_like(y).copy_(rounded)


def _in_blocks(y: Tensor, round_block: Callable[[Tensor, Tensor], None]) -> Tensor:
    """Round a tensor block by block, into a new one with the strides of an elementwise operator's result."""
    y = y.detach()
    flat = y.reshape(-1)
    rounded = torch.empty_like(flat)
    size = _CACHED_ELEMENTS if y.device.type == "cpu" else max(y.numel(), 1)
    for block, result in zip(flat.split(size), rounded.split(size), strict=True):
        round_block(block, result)
    rounded = rounded.view(y.shape)
    return rounded if y.is_contiguous() else torch.empty_like(y).copy_(rounded)


def _random_bits_(bits: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Fill `[n]` int64 with independent random integers of `count` bits."""
    if count > 31:
        return bits.random_(0, 1 << count, generator=generator)
    # Drawing is the dearest part of stochastic rounding: one draw of 63 bits serves two elements.
    half = (bits.numel() + 1) // 2
    drawn = bits[:half].random_(generator=generator)
    torch.bitwise_right_shift(drawn[: bits.numel() - half], 32, out=bits[half:])
    return bits.bitwise_and_((1 << count) - 1)


def _mend(y: Tensor, rounded: Tensor, fmt: Format, to_integer: Callable[[Tensor], Tensor]) -> None:
    """Round again what cutting bits can't: target subnormals, overflow, infinities and NaN.

    `to_integer` rounds non-negative multiples of the spacing.
    """
    if y.numel() == 0:
        return
    magnitude = y.abs()
    least, greatest = torch.aminmax(magnitude)
    if fmt.min_normal <= least.item() and greatest.item() <= fmt.max:  # false with a NaN, which both are then
        return
    # Zeros, which are many in masked tensors, are right as they are; written so that NaN is not regular.
    regular = (magnitude <= fmt.max).logical_and_((magnitude >= fmt.min_normal).logical_or_(magnitude == 0))
    at = regular.logical_not_()
    left = magnitude[at]
    if left.numel() == 0:
        return
    spacing = ulp(left, fmt)
    mended = to_integer(left / spacing).mul_(spacing)
    mended = torch.where(torch.isinf(left), left, mended)
    mended = torch.where(mended > fmt.max, torch.inf if fmt.has_inf else fmt.max, mended)
    rounded[at] = torch.copysign(mended, y[at])


def _demand_float64(y: Tensor) -> None:
    if y.dtype != torch.float64:
        raise ComparisonError(f"y is {y.dtype}: values are rounded from float64. Convert it with .double()")
