"""HDF5 types for torch dtypes, each stored bit for bit.

A type here has the size of its dtype and is used for the file and for memory alike, so HDF5 never
converts: NaN payloads and unused codes survive. bfloat16 and the float8 formats are true HDF5
floating types, which viewers show as numbers; HDF5 has no type whose top exponent holds finite
numbers, so viewers show e4m3fn's codes above 240, and the codes of the `fnuz` formats that mean NaN
or replace infinity, wrongly. Dtypes that no HDF5 number can describe are bytes under their name.
"""

from functools import cache

import numpy as np
import torch
from h5py import h5t

__all__ = [
    "CODE_TYPES",
    "dtype_name",
    "element_bytes",
    "hdf5_type",
    "is_storable",
    "torch_dtype",
    "torch_tensor",
]

_NUMPY_TYPES = {
    "bool": "bool",
    "complex64": "complex64",
    "complex128": "complex128",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
}
# Bits of the exponent and of the mantissa, and the exponent's bias. The sign is the top bit.
_FLOAT_FIELDS = {
    "bfloat16": (8, 7, 127),
    "float8_e4m3fn": (4, 3, 7),
    "float8_e4m3fnuz": (4, 3, 8),
    "float8_e5m2": (5, 2, 15),
    "float8_e5m2fnuz": (5, 2, 16),
}
CODE_TYPES = (
    "float4_e2m1fn_x2",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
    "bits8",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
)
"""Dtypes whose elements are packed codes, not one number each that torch can convert."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the torch name of a dtype without `torch.`."""
    return str(dtype).removeprefix("torch.")


def is_storable(dtype: torch.dtype) -> bool:
    """Say whether a dtype has an HDF5 type here: every torch dtype but the quantised ones."""
    return dtype_name(dtype) in _names()


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name that `dtype_name` gave.

    Raises:
        KeyError: the name is of no dtype that a capture can hold.
    """
    return _names()[name]


@cache
def hdf5_type(name: str) -> h5t.TypeID:
    """Return the HDF5 type of one element of the torch dtype `name`.

    Raises:
        KeyError: the name is of no dtype that a capture can hold.
    """
    if name in _NUMPY_TYPES:
        return h5t.py_create(np.dtype(_NUMPY_TYPES[name]), logical=True)
    if name in _FLOAT_FIELDS:
        return _float_type(*_FLOAT_FIELDS[name])
    if name == "complex32":
        pair = h5t.create(h5t.COMPOUND, 4)
        pair.insert(b"r", 0, h5t.IEEE_F16LE)
        pair.insert(b"i", 2, h5t.IEEE_F16LE)
        return pair
    return h5t.STD_U16LE if torch_dtype(name).itemsize == 2 else h5t.STD_U8LE


def element_bytes(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a contiguous CPU tensor as `[size_bytes]` uint8 that share its memory."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    flat: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat


def torch_tensor(data: np.ndarray, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor of dtype `name` whose contiguous bytes are `data` (`[size_bytes]` uint8, shared)."""
    dtype = torch_dtype(name)
    if data.size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


@cache
def _names() -> dict[str, torch.dtype]:
    # Older and newer torch have fewer and more of the sub-byte dtypes.
    names = (*_NUMPY_TYPES, *_FLOAT_FIELDS, "complex32", "float8_e8m0fnu", *CODE_TYPES)
    return {name: getattr(torch, name) for name in names if hasattr(torch, name)}


def _float_type(exponent: int, mantissa: int, bias: int) -> h5t.TypeFloatID:
    bits = 1 + exponent + mantissa
    made = h5t.IEEE_F32LE.copy()
    # The fields must lie inside the new precision before it shrinks to it.
    made.set_fields(bits - 1, mantissa, exponent, 0, mantissa)
    made.set_precision(bits)
    made.set_size(bits // 8)
    made.set_ebias(bias)
    return made
