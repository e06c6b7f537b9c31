"""Block formats MXFP8 and MXFP4: 32 elements of a narrow format share one power of two as their scale.

Elements are bit patterns, one to a byte; scales are E8M0 bit patterns, one to a block: `2^(code - 127)`,
and 0xFF is NaN. Blocks lie along the last dim.

Shape legend: * = any shape, N = elements of a row, a multiple of 32, B = N / 32 blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import FORMATS, Format
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = [
    "MXFP4",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "BlockFormat",
    "BlockScaled",
    "block_ulp",
    "dequantise",
    "quantise",
    "round_blocks",
    "unpack_float4",
]

_SCALE_BIAS = 127
_NAN_SCALE = 0xFF
_FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """A block format of the OCP specification.

    Attributes:
        name: as in the specification.
        element: format of one element.
        block: how many elements share a scale.
    """

    name: str
    element: Format
    block: int = 32


MXFP8_E4M3 = BlockFormat(name="mxfp8_e4m3", element=FORMATS["float8_e4m3fn"])
MXFP8_E5M2 = BlockFormat(name="mxfp8_e5m2", element=FORMATS["float8_e5m2"])
MXFP4 = BlockFormat(name="mxfp4", element=FORMATS["float4_e2m1"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScaled:
    """A tensor in a block format.

    Attributes:
        fmt: the format.
        codes: `[*, N]` uint8 bit patterns of the elements, in the low bits.
        scales: `[*, B]` uint8 bit patterns of the scales.
    """

    fmt: BlockFormat
    codes: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        """Check that every block has its scale, and every code its format's width."""
        _demand_codes(self.fmt, self.codes)
        _demand_scales(self.fmt, self.scales, self.codes)


def quantise(y: Tensor, fmt: BlockFormat, *, scales: Tensor | None = None) -> BlockScaled:
    """Round to a block format, each element once and to nearest, ties to even.

    Args:
        y: `[*, N]` float64.
        fmt: the block format.
        scales: `[*, B]` uint8 or float8_e8m0fnu scales to use, such as the candidate's; None for those of the
            specification, `2^(floor(log2 max|y|) - e_max)` over the block's finite elements.

    Returns:
        The nearest elements. What is beyond the element format's largest value becomes that value. Where the
        specification leaves the choice: a block without finite non-zero elements gets the smallest scale;
        NaN stays NaN, and infinity infinity, in elements that have them; infinity becomes NaN in those that
        have NaN alone; and in those that have neither the block's scale becomes NaN.

    Raises:
        ComparisonError: `y` is not float64, N is no multiple of the block, or `scales` doesn't fit.

    Source:
        OCP microscaling formats (MX) specification 1.0, sections 5 and 6.3.
    """
    _demand_rows(fmt, y)
    exponents = _exponents(y, fmt) if scales is None else _scale_codes(fmt, scales, y).to(torch.int64)
    element = fmt.element
    blocks = _in_blocks(y, fmt)
    scaled = blocks * _power_of_two(_SCALE_BIAS - exponents).unsqueeze(-1)
    finite = blocks.isfinite()
    rounded = round_nearest(scaled.clamp(-element.max, element.max), element)
    rounded = torch.where(finite, rounded, blocks)
    if not element.has_inf:
        rounded = rounded.masked_fill(blocks.isinf(), torch.nan)
    if not element.has_nan:
        exponents = exponents.masked_fill(~finite.all(-1), _NAN_SCALE)
        rounded = torch.where(finite, rounded, 0.0)
    codes = _encode(rounded.reshape(y.shape), element)
    return BlockScaled(fmt=fmt, codes=codes, scales=exponents.to(torch.uint8))


def dequantise(values: BlockScaled) -> Tensor:
    """Return the exact values, `[*, N]` float64. A block whose scale is NaN is NaN."""
    elements = _in_blocks(_decode(values.codes, values.fmt.element), values.fmt)
    return (elements * _scale(values.scales).unsqueeze(-1)).reshape(values.codes.shape)


def round_blocks(y: Tensor, fmt: BlockFormat, *, scales: Tensor | None = None) -> Tensor:
    """Return the nearest values of a block format as float64: `dequantise` of `quantise`."""
    return dequantise(quantise(y, fmt, scales=scales))


def block_ulp(y: Tensor, fmt: BlockFormat, scales: Tensor) -> Tensor:
    """Measure the spacing of a block format's values at `y`, given each block's scale.

    Args:
        y: `[*, N]` float64.
        fmt: the block format.
        scales: `[*, B]` uint8 or float8_e8m0fnu.

    Returns:
        `[*, N]` float64: the element format's ulp at `y / scale`, times the scale. NaN where either is NaN
        and where `y` is infinite.

    Raises:
        ComparisonError: `y` is not float64, N is no multiple of the block, or `scales` doesn't fit.

    Source:
        Goldberg's ulp, as in Muller, "On the definition of ulp(x)", INRIA RR-5504 (2005).
    """
    _demand_rows(fmt, y)
    scale = _scale(_scale_codes(fmt, scales, y)).unsqueeze(-1)
    return (ulp(_in_blocks(y, fmt) / scale, fmt.element) * scale).reshape(y.shape)


def unpack_float4(packed: Tensor) -> Tensor:
    """Return the codes of `[*, N/2]` packed float4 as `[*, N]` uint8; the low half of a byte comes first."""
    if packed.dtype not in (torch.uint8, torch.float4_e2m1fn_x2):
        raise ComparisonError(
            f"packed float4 was given as {packed.dtype}: give uint8 or float4_e2m1fn_x2, two elements a byte"
        )
    codes = packed.view(torch.uint8)
    return torch.stack((codes & 0xF, codes >> 4), dim=-1).flatten(-2)


def _exponents(y: Tensor, fmt: BlockFormat) -> Tensor:
    """Return the E8M0 codes of the specification, `[*, B]` int64."""
    blocks = _in_blocks(y, fmt)
    greatest = blocks.masked_fill(~blocks.isfinite(), 0.0).abs().amax(-1)
    floor_log2 = torch.frexp(greatest).exponent.to(torch.int64) - 1
    codes = (floor_log2 - fmt.element.e_max + _SCALE_BIAS).clamp(0, _NAN_SCALE - 1)
    return codes.masked_fill(greatest == 0, 0)


def _encode(values: Tensor, element: Format) -> Tensor:
    if element.dtype is not None:
        return values.to(element.dtype).view(torch.uint8)
    magnitude = torch.bucketize(values.abs(), torch.tensor(_FLOAT4, dtype=torch.float64))
    return (magnitude + 8 * values.signbit()).to(torch.uint8)


def _decode(codes: Tensor, element: Format) -> Tensor:
    if element.dtype is not None:
        return codes.view(element.dtype).to(torch.float64)
    both = [*_FLOAT4, *(-value for value in _FLOAT4)]
    return torch.tensor(both, dtype=torch.float64).take(codes.to(torch.int64))


def _scale(codes: Tensor) -> Tensor:
    scale = _power_of_two(codes.to(torch.int64) - _SCALE_BIAS)
    return scale.masked_fill_(codes == _NAN_SCALE, torch.nan)


def _power_of_two(exponents: Tensor) -> Tensor:
    # By float64's bits: torch.ldexp takes the power in float32, where the least scales are subnormal.
    return (exponents + 1023 << 52).view(torch.float64)


def _in_blocks(values: Tensor, fmt: BlockFormat) -> Tensor:
    blocks: Tensor = values.unflatten(-1, (values.shape[-1] // fmt.block, fmt.block))
    return blocks


def _scale_codes(fmt: BlockFormat, scales: Tensor, values: Tensor) -> Tensor:
    codes = scales.view(torch.uint8) if scales.dtype == torch.float8_e8m0fnu else scales
    _demand_scales(fmt, codes, values)
    return codes


def _demand_rows(fmt: BlockFormat, y: Tensor) -> None:
    if y.dtype != torch.float64:
        raise ComparisonError(f"y is {y.dtype}: values are rounded from float64. Convert it with .double()")
    _demand_multiple(fmt, y)


def _demand_codes(fmt: BlockFormat, codes: Tensor) -> None:
    _demand_multiple(fmt, codes)
    width = fmt.element.bits
    if codes.dtype != torch.uint8:
        raise ComparisonError(f"codes of {fmt.name} were given as {codes.dtype}: give uint8 bit patterns")
    if codes.numel() and int(codes.max()) >= 1 << width:
        raise ComparisonError(
            f"bit pattern {int(codes.max()):#x} does not fit {width} bits: give one element to a byte; "
            "unpack_float4 takes packed ones apart"
        )


def _demand_scales(fmt: BlockFormat, scales: Tensor, values: Tensor) -> None:
    wanted = (*values.shape[:-1], values.shape[-1] // fmt.block)
    if scales.dtype != torch.uint8 or tuple(scales.shape) != wanted:
        raise ComparisonError(
            f"scales are {scales.dtype} {list(scales.shape)}: elements {list(values.shape)} of {fmt.name} "
            f"have uint8 scales {list(wanted)}"
        )


def _demand_multiple(fmt: BlockFormat, values: Tensor) -> None:
    if values.ndim == 0 or values.shape[-1] % fmt.block:
        raise ComparisonError(
            f"a tensor of shape {list(values.shape)} has no whole blocks of {fmt.block} along its last dim; "
            "move the blocked dim to the end, or pad it with zeros"
        )
