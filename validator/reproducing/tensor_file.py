"""Tensors in a file that needs no library to be read: the safetensors format.

Source: https://huggingface.co/docs/safetensors, "Format": the size of the header in 8 bytes (little-endian),
the header as JSON (type, shape, place of each tensor), and the tensors' bytes, row-major and little-endian.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["TYPES", "write_tensors"]

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's name of each dtype."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write tensors to a file.

    Args:
        path: the file; what it held is replaced.
        tensors: by name; those of a dtype that is not in `TYPES` are written as float64.
        about: texts to store with them.
    """
    header: dict[str, object] = {"__metadata__": dict(about)}
    blocks: list[bytes] = []
    place = 0
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        if plain.dtype not in TYPES:
            plain = plain.to(torch.float64)
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        header[name] = {
            "dtype": TYPES[plain.dtype],
            "shape": list(plain.shape),
            "data_offsets": [place, place + len(data)],
        }
        blocks.append(data)
        place += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        file.writelines(blocks)
