"""Reading tensors of which a capture keeps a sample, or statistics alone.

A sampled tensor is read in its own shape, with NaN for what is not known. So everything that rearranges
tensors (shards, fused projections, expert order) rearranges a sample as well; what is computed of unknown
values is unknown; and whoever compares takes the elements that both sides know. How many NaN the tensor
had itself is in its statistics.

Shape legend: * = any shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn

import torch

from validator.errors import CaptureError

from .files import StoredValue
from .levels import kept

__all__ = ["NotKept", "SampledValue", "scattered"]

_BLOCK = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledValue:
    """The values of a sampled tensor, read when called. It can be pickled.

    Attributes:
        stored: the elements that were kept, flat.
        shape: of the tensor.
        one_in: one of so many is kept.
        starts: where the tensor begins in a larger one of shape `whole`, where that is known.
    """

    stored: StoredValue
    shape: tuple[int, ...]
    one_in: int
    starts: tuple[int, ...] | None = None
    whole: tuple[int, ...] | None = None

    def __call__(self) -> torch.Tensor:
        """Return the tensor, `[*]`, with NaN where it is not known.

        Raises:
            CaptureError: the file is damaged, or is no longer the one that was opened.
        """
        return scattered(self.stored(), self.shape, one_in=self.one_in, starts=self.starts, whole=self.whole)

    def blocks(self) -> Iterator[torch.Tensor]:
        """Yield the elements in row-major order, in flat tensors, at least one."""
        yield from self().reshape(-1).split(_BLOCK)


class NotKept:
    """Stands for the values of a tensor of which statistics alone were kept."""

    def __init__(self, file: Path, path: str) -> None:
        self._file, self._path = file, path

    def __call__(self) -> NoReturn:
        """Raise `CaptureError`."""
        raise CaptureError(
            f"{self._file}: of {self._path} only statistics were kept. Capture again with --level sample or "
            "full to get values."
        )


def scattered(
    values: torch.Tensor,
    shape: Sequence[int],
    *,
    one_in: int,
    starts: Sequence[int] | None = None,
    whole: Sequence[int] | None = None,
) -> torch.Tensor:
    """Put the elements that were kept back into their tensor, NaN elsewhere: see `levels.kept`."""
    flat = torch.full((prod(shape),), torch.nan, dtype=torch.float32).to(values.dtype)
    places = torch.from_numpy(kept(shape, one_in, starts=starts, whole=whole))
    if values.element_size() == 1:  # float8 can't be indexed
        flat.view(torch.uint8)[places] = values.view(torch.uint8)
    else:
        flat[places] = values
    return flat.reshape(tuple(shape))
