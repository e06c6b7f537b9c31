"""The floating-point formats that tensors are stored in, and what rounding needs to know of them."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn

from validator.errors import ComparisonError

__all__ = ["FORMATS", "Format", "format_of", "weights_dtype"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating-point format: sign, exponent and fraction, with subnormals.

    Attributes:
        name: torch's name of the dtype, without `torch.`; `"float4_e2m1"` for one 4-bit element.
        dtype: the torch dtype of one element; None for float4, which torch stores two to a byte.
        bits: width of one element.
        precision: significant bits, the hidden one included (`p`).
        e_min: exponent of the smallest normal value, 2^e_min; subnormals are multiples of `quantum`.
        e_max: exponent of the largest finite value.
        max: largest finite value.
        last_magnitude: largest bit pattern, sign cleared, that is not a NaN: infinity's where there is one.
        has_inf, has_nan, has_negative_zero: which special values the format can hold.

    Source:
        IEEE 754-2019; OCP 8-bit floating point specification 1.0 (e4m3fn, e5m2); OCP microscaling
        formats 1.0 (e2m1); Noune et al., arXiv 2206.02915 (the fnuz formats).
    """

    name: str
    dtype: torch.dtype | None
    bits: int
    precision: int
    e_min: int
    e_max: int
    max: float
    last_magnitude: int
    has_inf: bool = True
    has_nan: bool = True
    has_negative_zero: bool = True

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest, 2^-p, where nothing under- or overflows."""
        return 2.0**-self.precision

    @property
    def min_normal(self) -> float:
        """Smallest positive value with full precision."""
        return 2.0**self.e_min

    @property
    def quantum(self) -> float:
        """Smallest positive value, and the distance between neighbours below `2 * min_normal`."""
        return 2.0 ** (self.e_min - self.precision + 1)


# Not taken from torch.finfo: its eps is wrong for float8_e5m2fnuz.
FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format(
            name="float64",
            dtype=torch.float64,
            bits=64,
            precision=53,
            e_min=-1022,
            e_max=1023,
            max=(2 - 2**-52) * 2.0**1023,
            last_magnitude=0x7FF0_0000_0000_0000,
        ),
        Format(
            name="float32",
            dtype=torch.float32,
            bits=32,
            precision=24,
            e_min=-126,
            e_max=127,
            max=(2 - 2**-23) * 2.0**127,
            last_magnitude=0x7F80_0000,
        ),
        Format(
            name="float16",
            dtype=torch.float16,
            bits=16,
            precision=11,
            e_min=-14,
            e_max=15,
            max=65504.0,
            last_magnitude=0x7C00,
        ),
        Format(
            name="bfloat16",
            dtype=torch.bfloat16,
            bits=16,
            precision=8,
            e_min=-126,
            e_max=127,
            max=(2 - 2**-7) * 2.0**127,
            last_magnitude=0x7F80,
        ),
        Format(
            name="float8_e4m3fn",
            dtype=torch.float8_e4m3fn,
            bits=8,
            precision=4,
            e_min=-6,
            e_max=8,
            max=448.0,
            last_magnitude=0x7E,
            has_inf=False,
        ),
        Format(
            name="float8_e5m2",
            dtype=torch.float8_e5m2,
            bits=8,
            precision=3,
            e_min=-14,
            e_max=15,
            max=57344.0,
            last_magnitude=0x7C,
        ),
        Format(
            name="float8_e4m3fnuz",
            dtype=torch.float8_e4m3fnuz,
            bits=8,
            precision=4,
            e_min=-7,
            e_max=7,
            max=240.0,
            last_magnitude=0x7F,
            has_inf=False,
            has_negative_zero=False,
        ),
        Format(
            name="float8_e5m2fnuz",
            dtype=torch.float8_e5m2fnuz,
            bits=8,
            precision=3,
            e_min=-15,
            e_max=15,
            max=57344.0,
            last_magnitude=0x7F,
            has_inf=False,
            has_negative_zero=False,
        ),
        Format(
            name="float4_e2m1",
            dtype=None,
            bits=4,
            precision=2,
            e_min=0,
            e_max=2,
            max=6.0,
            last_magnitude=0x7,
            has_inf=False,
            has_nan=False,
        ),
    )
}


def format_of(dtype: torch.dtype | str) -> Format:
    """Look up the format of a dtype.

    Args:
        dtype: a torch dtype, or its name with or without `torch.`. `float4_e2m1fn_x2`, two elements
            to a byte, gives the format of one element.

    Returns:
        The one `Format` object of that dtype: formats can be compared with `is`.

    Raises:
        ComparisonError: the dtype is no floating format that is known here.
    """
    name = str(dtype).removeprefix("torch.")
    fmt = FORMATS.get("float4_e2m1" if name == "float4_e2m1fn_x2" else name)
    if fmt is None:
        raise ComparisonError(
            f"no floating-point format is known for dtype {name!r}; known are {', '.join(FORMATS)}. "
            "Compare integers and booleans exactly, and complex tensors by their real and imaginary parts"
        )
    return fmt


def weights_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the format that most of a model computes in: that of most elements of its parameters.

    Narrower floating formats, such as float8, hold codes: they are dequantised before anything is computed,
    and rounding to them is no noise of the run. Buffers are tables and counters.

    Returns:
        float64, float32, float16 or bfloat16; None where no parameter has one of these.
    """
    elements = Counter[torch.dtype]()
    for parameter in model.parameters():
        if parameter.dtype in _COMPUTED:
            elements[parameter.dtype] += parameter.numel()
    return elements.most_common(1)[0][0] if elements else None


_COMPUTED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
