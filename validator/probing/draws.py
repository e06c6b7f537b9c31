"""Inputs that every rank can make for every rank, and how they lie in memory."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

__all__ = ["Draw", "Memory", "Ranks", "Values", "arrange", "bits_of", "poisoned"]

_COLUMNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Where a case runs: this process's rank among how many, its device, and how often it repeats."""

    rank: int
    world_size: int
    device: torch.device
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What the values of one input may depend on.

    Attributes:
        rank: whose input it is.
        size: number of elements.
        turn: number of the call: an answer that is left from another call is seen to be another's.
    """

    rank: int
    world_size: int
    size: int
    dtype: torch.dtype
    turn: int

    def generator(self, purpose: str = "") -> torch.Generator:
        """Return the source of this input's numbers, the same on every machine."""
        key = f"{purpose} {self.rank} {self.world_size} {self.size} {self.dtype} {self.turn}"
        seed = hashlib.blake2b(key.encode(), digest_size=7).digest()
        return torch.Generator().manual_seed(int.from_bytes(seed, "little"))

    def shared_generator(self) -> torch.Generator:
        """Return a source of numbers that are the same on all ranks."""
        same = Draw(rank=-1, world_size=self.world_size, size=self.size, dtype=self.dtype, turn=self.turn)
        return same.generator("shared")


Values = Callable[[Draw], Tensor]
"""Makes `[size]` values of the draw's dtype, on the CPU."""


class Memory(StrEnum):
    """How a tensor's elements lie in memory.

    `transposed` is dense but column by column; `strided` skips every second element.
    """

    CONTIGUOUS = "contiguous"
    TRANSPOSED = "transposed"
    STRIDED = "strided"


def arrange(values: Tensor, memory: Memory) -> Tensor:
    """Return `[n]` values as a tensor that reads the same, row by row, but lies in memory so.

    A transposed one has shape `[n / 3, 3]`; n must be a multiple of 3.
    """
    if memory is Memory.TRANSPOSED:
        return values.view(-1, _COLUMNS).t().contiguous().t()
    if memory is Memory.STRIDED:
        spaced = values.new_zeros(2 * values.numel())
        spaced[::2] = values
        return spaced[::2]
    return values.clone()


def poisoned(size: int, dtype: torch.dtype) -> Tensor:
    """Return `[size]` elements whose bits are all set: NaN in most floating formats.

    A buffer is filled so before a collective writes it; bool, which has no such value, is True.
    """
    if dtype is torch.bool:
        return torch.ones(size, dtype=dtype)
    return torch.full((size * dtype.itemsize,), 0xFF, dtype=torch.uint8).view(dtype)


def bits_of(tensor: Tensor) -> Tensor:
    """Return the bit patterns of a tensor's elements, row by row, as `[n]` int64."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.dtype.itemsize]
    return flat.view(integer).to(torch.int64)
