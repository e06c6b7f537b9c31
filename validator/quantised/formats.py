"""Which tensors of a module are one quantised weight, and its values, as the library of the format has them.

| tensors of the module, with `P` a weight's name | format | whose code |
|---|---|---|
| `P` in float8 with `P_scale_inv` or `P_scale`: a block's, a row's, or one | FP8 | transformers |
| `P_blocks`, `P_scales` | MXFP4 | transformers |
| `P_packed` in int32, `P_scale`, `P_shape`, maybe `P_zero_point` | packed integers | compressed-tensors |
| `P` in int8 with `P_scale`, maybe `P_zero_point` | int8 | compressed-tensors |

Values are in float32, which holds a code of up to 8 bits times a scale of 16 bits.

Shape legend: N = rows, K = columns, G = groups of columns, E = experts.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError

__all__ = ["QuantisedWeight", "dequantised", "quantised_weights"]

_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_SCALES = ("_scale_inv", "_scale")
_WORD_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """A weight in parts.

    Attributes:
        name: of the weight that the parts stand for.
        kind: `"fp8"`, `"mxfp4"`, `"packed"` or `"int8"`.
        parts: names of its parts by what they are, such as `"codes"` and `"scale"`.
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
        scale = next((name + suffix for suffix in _SCALES if name + suffix in dtypes), None)
        if name.endswith("_blocks") and dtype == "uint8":
            weight = name.removesuffix("_blocks")
            parts = {"codes": name, "scale": f"{weight}_scales"}
            kind = "mxfp4"
        elif name.endswith("_packed") and dtype == "int32":
            weight = name.removesuffix("_packed")
            parts = {"codes": name, "scale": f"{weight}_scale", "shape": f"{weight}_shape"}
            kind = "packed"
        elif scale is not None and dtype in (*_FLOAT8, "int8"):
            weight, parts, kind = name, {"codes": name, "scale": scale}, "int8" if dtype == "int8" else "fp8"
        else:
            continue
        if all(part in dtypes for part in parts.values()):
            zero = f"{weight}_zero_point"
            parts |= {"zero_point": zero} if zero in dtypes else {}
            found.append(QuantisedWeight(name=weight, kind=kind, parts=parts))
    return found


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
        operation: Any = _library("transformers.integrations.finegrained_fp8").Fp8Dequantize(None)
        grid = scale if scale.dim() > 1 else scale.reshape(-1, 1)
        made: Tensor = operation._dequantize_one(codes, grid, output_dtype=torch.float32)
        return made
    if kind == "mxfp4":
        library: Any = _library("transformers.integrations.mxfp4")
        experts: Tensor = library.convert_moe_packed_tensors(codes, scale, dtype=torch.float32)
        return experts
    return _integers(kind, parts, scale.to(torch.float32))


def _integers(kind: str, parts: Mapping[str, Tensor], scale: Tensor) -> Tensor:
    codes, zero_point = parts["codes"], parts.get("zero_point")
    library: Any = _library("compressed_tensors.quantization")
    shape = [int(n) for n in parts["shape"]] if kind == "packed" else list(codes.shape)
    bits = 8 if kind == "int8" else codes.shape[-1] * _WORD_BITS // shape[-1]
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
    compressor: Any = _library("compressed_tensors.compressors").BaseCompressor.get_value_from_registry(
        "pack-quantized" if kind == "packed" else "int-quantized"
    )
    made: Tensor = compressor.decompress(own, scheme)["weight"]
    return made.to(torch.float32)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"quantised weights need the library that defines their format ({error}): "
            "pip install 'accuracy-validator[hf]'"
        ) from error
