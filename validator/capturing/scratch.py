"""Tensors on the disk, for values that a measurement over a whole model need not hold in memory."""

import tempfile
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from validator.capturing.formats_hdf5 import dtype_name, element_bytes, torch_tensor
from validator.errors import CaptureError

__all__ = ["Scratch"]


class Scratch:
    """A temporary file of tensors, which nobody else sees and which goes with the process.

    Args:
        folder: where it lies.

    Raises:
        CaptureError: the disk is full, or can't be written. So do the methods.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slots: list[tuple[int, str, torch.Size]] = []
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it stays open until `close`
        except OSError as error:
            raise self._failed(error) from error

    def append(self, tensor: Tensor) -> int:
        """Keep a tensor, and return the number of its slot."""
        self._slots.append((self._end, dtype_name(tensor.dtype), tensor.shape))
        self._end += tensor.numel() * tensor.element_size()
        self.write(len(self._slots) - 1, tensor)
        return len(self._slots) - 1

    def write(self, slot: int, tensor: Tensor) -> None:
        """Replace the tensor in a slot by one of the same dtype and shape."""
        try:
            self._file.seek(self._slots[slot][0])
            self._file.write(element_bytes(tensor.detach().cpu().contiguous()).data)
        except OSError as error:
            raise self._failed(error) from error

    def read(self, slot: int) -> Tensor:
        """Return the tensor in a slot, on the CPU."""
        offset, dtype, shape = self._slots[slot]
        data = np.empty(prod(shape) * getattr(torch, dtype).itemsize, np.uint8)
        try:
            self._file.seek(offset)
            self._file.readinto(data.data)
        except OSError as error:
            raise self._failed(error) from error
        return torch_tensor(data, dtype, tuple(shape))

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _failed(self, error: OSError) -> CaptureError:
        return CaptureError(
            f"{self._folder}: no temporary file can be written there ({error.strerror}): measuring noise "
            f"keeps the values of the run on the disk, {self._end} bytes so far. Make room, or include fewer "
            "modules"
        )
