"""Checksums and statistics of tensors, as they are stored beside the values.

Shape legend: * = any shape.
"""

import hashlib
import math

import numpy as np
import torch

from .formats_hdf5 import CODE_TYPES, dtype_name, element_bytes
from .records import Statistics

__all__ = ["Checksum", "checksum", "row_hashes", "statistics"]

# Small enough that a block's float64 copy stays in the processor's cache.
_BLOCK = 1 << 16


def checksum(data: np.ndarray) -> str:
    """Return BLAKE2b-128 of `[size_bytes]` uint8, in hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()  # type: ignore[arg-type]


class Checksum:
    """The checksum of bytes that come in parts."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, data: np.ndarray) -> None:
        """Add the next bytes, `[size_bytes]` uint8."""
        self._hash.update(data)  # type: ignore[arg-type]

    def hex(self) -> str:
        """Return what `checksum` gives for all bytes together."""
        return self._hash.hexdigest()


def row_hashes(tensor: torch.Tensor) -> tuple[tuple[str, ...], str]:
    """Return the hash of each row along dim 0, and the checksum of the whole.

    Args:
        tensor: `[rows, *]` on any device; below 2 dims the whole tensor is one row. Only a block of
            rows at a time is brought to the CPU.
    """
    rows = tensor.detach()
    rows = rows.reshape(1, -1) if rows.ndim < 2 else rows.reshape(rows.shape[0], -1)
    step = max(1, (64 << 20) // max(1, rows.shape[1] * rows.element_size()))
    whole = hashlib.blake2b(digest_size=16)
    hashes = []
    for start in range(0, rows.shape[0], step):
        for row in rows[start : start + step].cpu().contiguous():
            data = element_bytes(row)
            whole.update(data)  # type: ignore[arg-type]
            hashes.append(checksum(data))
    return tuple(hashes), whole.hexdigest()


def statistics(tensor: torch.Tensor) -> Statistics | None:
    """Return statistics in float64 over the finite elements; None for complex numbers and for packed codes.

    Args:
        tensor: `[*]` on the CPU.
    """
    if tensor.is_complex() or dtype_name(tensor.dtype) in CODE_TYPES:
        return None
    total = _Running()
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _BLOCK):
        total.add(flat[start : start + _BLOCK].to(torch.float64))
    return total.result()


class _Running:
    """Statistics so far, each block scaled by its largest element so that no square overflows."""

    def __init__(self) -> None:
        self._count = self._nan = self._inf = 0
        self._min, self._max = math.inf, -math.inf
        self._mean = self._norm = 0.0

    def add(self, block: torch.Tensor) -> None:
        low, high = (x.item() for x in block.aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            self._nan += int(block.isnan().sum())
            self._inf += int(block.isinf().sum())
            block = block[block.isfinite()]
            if block.numel() == 0:
                return
            low, high = (x.item() for x in block.aminmax())
        self._min, self._max = min(self._min, low), max(self._max, high)
        self._count += block.numel()
        scale = max(abs(low), abs(high)) or 1.0
        scaled = block / scale
        self._mean += (scaled.mean().item() * scale - self._mean) * (block.numel() / self._count)
        self._norm = math.hypot(self._norm, torch.linalg.vector_norm(scaled).item() * scale)

    def result(self) -> Statistics:
        if self._count == 0:
            nothing = math.nan
            return Statistics(
                min=nothing, max=nothing, mean=nothing, rms=nothing, nan=self._nan, inf=self._inf
            )
        return Statistics(
            min=self._min,
            max=self._max,
            mean=self._mean,
            rms=self._norm / math.sqrt(self._count),
            nan=self._nan,
            inf=self._inf,
        )
