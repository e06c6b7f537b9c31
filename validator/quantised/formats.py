"""Which tensors of a module are one quantised weight, and its values, as the library of the format has them.

| tensors of the module, with `P` a weight's name | format | whose code |
|---|---|---|
| `P` in float8 with `P_scale_inv` or `P_scale`: a block's, a row's, or one | FP8 | transformers, `blocks` |
| `P_blocks`, `P_scales` | MXFP4 | transformers |
| `P_packed` in int32, `P_scale`, `P_shape`, maybe `P_zero_point` | packed integers | compressed-tensors |
| `P` in int8 with `P_scale`, maybe `P_zero_point` | int8 | compressed-tensors |

A loader that quantises anew may leave the checkpoint's scale beside its own, under the other name.

Values are in float32, which holds a code of up to 8 bits times a scale of 16 bits. Codes in float8 that have
no scale are values.

Shape legend: N = rows, K = columns, G = groups of columns, E = experts.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.numerics.formats import FORMATS, format_of
from validator.numerics.ulp import ulp
from validator.quantised.blocks import block_size, is_ambiguous, scales_of_equal_blocks
from validator.quantised.packing import BITS, WORD_BITS

__all__ = [
    "QuantisedWeight",
    "dequantised",
    "format_name",
    "half_steps",
    "obstacle",
    "quantised_weights",
    "values_shape",
]

_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_SCALES = ("_scale_inv", "_scale")
_OF_ACTIVATIONS = ("input", "output", "activation", "act_", "q_", "k_", "v_")
_FP4_ONES, _INT4_ONES, _INT8_ONES = 0x22, -0x66666667, -0x7E7E7E7F
"""Bytes and words in which each code stands for 1; integers are stored with half their range added."""
_MXFP4_BLOCK = (16, 32)  # bytes, and codes in them


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """A weight in parts.

    Attributes:
        name: of the weight that the parts stand for.
        kind: `"fp8"`, `"mxfp4"`, `"packed"` or `"int8"`; `"unknown"` where no scale is found.
        parts: names of its parts by what they are, such as `"codes"` and `"scale"`; `"other_scale"` where two
            stand beside the codes, and the names don't tell whose they are.
    """

    name: str
    kind: str
    parts: Mapping[str, str]


def quantised_weights(dtypes: Mapping[str, str]) -> list[QuantisedWeight]:
    """Find the quantised weights among a module's own tensors.

    Args:
        dtypes: torch's name of the dtype by the tensor's name.
    """
    found = []
    for name, dtype in dtypes.items():
        scales = [name + suffix for suffix in _SCALES if name + suffix in dtypes]
        if name.endswith("_blocks") and dtype == "uint8":
            weight = name.removesuffix("_blocks")
            parts = {"codes": name, "scale": f"{weight}_scales"}
            kind = "mxfp4"
        elif name.endswith("_packed") and dtype == "int32":
            weight = name.removesuffix("_packed")
            parts = {"codes": name, "scale": f"{weight}_scale", "shape": f"{weight}_shape"}
            kind = "packed"
        elif scales and dtype in (*_FLOAT8, "int8"):
            weight, parts = name, {"codes": name, **dict(zip(("scale", "other_scale"), scales, strict=False))}
            kind = "int8" if dtype == "int8" else "fp8"
        elif dtype == "int8" or (dtype in _FLOAT8 and _other_scales(dtypes)):
            weight, parts, kind = name, {"codes": name}, "unknown"
        else:
            continue
        if all(part in dtypes for part in parts.values()):
            zero = f"{weight}_zero_point"
            parts |= {"zero_point": zero} if zero in dtypes else {}
            found.append(QuantisedWeight(name=weight, kind=kind, parts=parts))
    return found


def obstacle(kind: str, shapes: Mapping[str, Sequence[int]], names: Mapping[str, str] | None = None) -> str:
    """Say why a weight can't be dequantised; nothing where it can.

    Args:
        kind: of a `QuantisedWeight`.
        shapes: of its parts by what they are; of `"shape"` what it holds.
        names: of its parts, for the message.
    """
    codes, scale = tuple(shapes["codes"]), tuple(shapes.get("scale", ()))
    if kind == "unknown":
        return (
            f"{(names or {}).get('codes', 'it')} holds codes, and no scale of a known name stands beside it"
        )
    if kind == "mxfp4":
        fits = len(codes) > 2 and codes[-1] == _MXFP4_BLOCK[0] and scale == codes[:-1]
    elif kind == "packed":
        fits = len(codes) == 2 and _fits(scale, (codes[0], _columns(codes, shapes["shape"])))
        fits = fits and bool(_bits(codes, shapes["shape"]))
    else:
        if kind == "fp8" and is_ambiguous(scale, codes):
            return (
                f"a scale of {list(scale)} for codes of {list(codes)} may be that of parts of one size, or "
                "of square blocks of which the last is shorter"
            )
        fits = _fits(scale, codes) or (kind == "fp8" and block_size(scale, codes) is not None)
        fits = fits and (kind == "fp8" or shapes.get("zero_point", scale) == scale)
    if not fits:
        known = "" if kind == "mxfp4" else ": no scale for all, for each row, or for blocks of equal size"
        known += ", or for square ones of a power of 2" if kind == "fp8" else ""
        return (
            f"a scale of {list(scale)} for codes of {list(codes)} is no layout that is known of {kind}{known}"
        )
    try:
        _require(kind)
    except UsageError as error:
        return str(error)
    return ""


def values_shape(kind: str, shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """Return the shape of a weight's values, or of its codes where the format is not known."""
    codes = tuple(shapes["codes"])
    if kind == "mxfp4" and len(codes) > 2:
        return (*codes[:-3], codes[-2] * _MXFP4_BLOCK[1], codes[-3])
    if kind == "packed" and len(codes) == 2:
        return codes[0], _columns(codes, shapes["shape"])
    return codes


def _other_scales(names: Mapping[str, str]) -> list[str]:
    """Return the names of scales that belong to weights, as it seems."""
    return [name for name in names if "scale" in name and not name.startswith(_OF_ACTIVATIONS)]


def _fits(scale: tuple[int, ...], codes: tuple[int, ...]) -> bool:
    """Tell whether scales are one, one for each row, or one for each of equal blocks."""
    if torch.Size(scale).numel() == 1:
        return True
    if len(scale) == 1:
        return len(codes) == 2 and scale[0] == codes[0]
    if len(scale) != len(codes) or scale[:-2] != codes[:-2]:
        return False
    return all(block > 0 and not size % block for size, block in zip(codes[-2:], scale[-2:], strict=True))


def _columns(codes: tuple[int, ...], shape: Sequence[int]) -> int:
    return int(shape[-1]) if len(shape) else 0


def _bits(codes: Sequence[int], shape: Sequence[int]) -> int:
    """Return how many bits a packed code has, or 0 where the shapes don't say."""
    columns = _columns(tuple(codes), shape)
    bits = codes[-1] * WORD_BITS // columns if columns else 0
    is_whole = len(shape) == 2 and int(shape[0]) == codes[0]
    return bits if is_whole and bits in BITS and codes[-1] * WORD_BITS == bits * columns else 0


def dequantised(kind: str, parts: Mapping[str, Tensor]) -> Tensor:
    """Return a weight's values in float32: `[N, K]`, or `[E, K, N]` of MXFP4, whose experts are transposed.

    Args:
        kind: of a `QuantisedWeight`.
        parts: its parts by what they are.

    Raises:
        UsageError: the library that defines the format is not installed.
        ValueError, RuntimeError: the parts don't fit each other.
    """
    codes, scale = parts["codes"], parts["scale"]
    if kind == "fp8":
        operation: Any = _library(_HOMES[kind]).Fp8Dequantize(None)
        grid = scale if scale.dim() > 1 else scale.reshape(-1, 1)
        block = block_size(grid.shape, codes.shape)
        grid = grid if block is None else scales_of_equal_blocks(grid, codes.shape, block)
        made: Tensor = operation._dequantize_one(codes, grid, output_dtype=torch.float32)
        return made
    if kind == "mxfp4":
        library: Any = _library(_HOMES[kind])
        experts: Tensor = library.convert_moe_packed_tensors(codes, scale, dtype=torch.float32)
        return experts
    return _integers(kind, parts, scale.to(torch.float32))


def format_name(kind: str, parts: Mapping[str, Tensor]) -> str:
    """Return the format of a weight's codes: torch's name of a float8, `"int8"`, `"int4"` or `"mxfp4"`."""
    if kind == "fp8":
        return str(parts["codes"].dtype).removeprefix("torch.")
    if kind == "packed":
        return f"int{_bits(parts['codes'].shape, parts['shape'].tolist())}"
    return kind


def half_steps(kind: str, parts: Mapping[str, Tensor]) -> Tensor:
    """Return how far from each code's value rounding to the nearest code reaches, as `dequantised` has it.

    Where the distance to the two neighbours differs it is the larger.
    """
    ones = {name: part for name, part in parts.items() if name != "zero_point"}
    codes = parts["codes"]
    if kind == "fp8":
        scale = dequantised(
            kind, ones | {"codes": torch.ones_like(codes, dtype=torch.float32).to(codes.dtype)}
        )
        spacing = ulp(codes.to(torch.float64).nan_to_num(nan=0.0), format_of(codes.dtype))
        return scale * spacing.to(torch.float32) / 2
    if kind == "mxfp4":
        scale = dequantised(kind, ones | {"codes": torch.full_like(codes, _FP4_ONES)})
        values = dequantised(kind, parts) / scale
        return scale * ulp(values.to(torch.float64), FORMATS["float4_e2m1"]).to(torch.float32) / 2
    if kind == "packed":
        codes = torch.full_like(codes, _INT4_ONES if format_name(kind, parts) == "int4" else _INT8_ONES)
    else:
        codes = torch.ones_like(codes)
    return dequantised(kind, ones | {"codes": codes}) / 2


def _integers(kind: str, parts: Mapping[str, Tensor], scale: Tensor) -> Tensor:
    codes, zero_point = parts["codes"], parts.get("zero_point")
    library: Any = _library("compressed_tensors.quantization")
    shape = [int(n) for n in parts["shape"]] if kind == "packed" else list(codes.shape)
    bits = 8 if kind == "int8" else _bits(codes.shape, shape)
    scale = scale.reshape(-1, 1) if scale.dim() == 1 and scale.numel() > 1 else scale
    groups = scale.shape[-1] if scale.dim() > 1 else 1
    strategy = "tensor" if scale.numel() == 1 else "group" if groups > 1 else "channel"
    arguments: Any = library.QuantizationArgs(
        num_bits=bits,
        strategy=strategy,
        group_size=shape[-1] // groups if strategy == "group" else None,
        symmetric=zero_point is None,
    )
    scheme: Any = library.QuantizationScheme(targets=["Linear"], weights=arguments)
    own = {"weight_packed" if kind == "packed" else "weight": codes, "weight_scale": scale}
    own |= {"weight_shape": parts["shape"]} if kind == "packed" else {}
    own |= {} if zero_point is None else {"weight_zero_point": zero_point}
    compressor: Any = _library(_HOMES[kind]).BaseCompressor.get_value_from_registry(
        "pack-quantized" if kind == "packed" else "int-quantized"
    )
    made: Tensor = compressor.decompress(own, scheme)["weight"]
    return made.to(torch.float32)


_HOMES = {
    "fp8": "transformers.integrations.finegrained_fp8",
    "mxfp4": "transformers.integrations.mxfp4",
    "packed": "compressed_tensors.compressors",
    "int8": "compressed_tensors.compressors",
}
"""Where the code is that dequantises a format."""


def _require(kind: str) -> None:
    _library(_HOMES[kind])


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"quantised weights need the library that defines their format ({error}): "
            "pip install 'accuracy-validator[hf]'"
        ) from error
