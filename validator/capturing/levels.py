"""How much of each tensor a capture keeps, and which elements a sample is.

A sample must be of the same elements on every side and every layout, and a rank that holds a plain shard
does not know where it lies. So the elements are those of a lattice: with `row` the number of the row among
all of them and `j` the place in it, one is kept where `STEP * row + j` is a multiple of `one_in`, a power of
two. That is even: each row of a matrix has its share, each column has one element in `one_in` rows, and no
box of `one_in` elements is far from one. And it is the same lattice in a shard that starts at a multiple of
`one_in`, which shards of large tensors do; a DTensor's place is known, and its sample is that of the whole.
Lattices are nested: of two sides that keep one in 8 and one in 64, both keep one in 64. Shards that start
elsewhere keep other elements than the whole tensor would. What both sides know is what is compared, and that
is all of a sample where the other side is whole.

Integers and booleans are kept whole at every level: they decide what is computed. So are small tensors.

Shape legend: K = elements kept.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import prod

import numpy as np
import numpy.typing as npt

__all__ = ["COARSEST", "FEWEST", "NOTHING", "STEP", "Indices", "Level", "is_even", "kept", "one_in_of"]

COARSEST = 128
"""At least one of so many elements is kept: 0.8%."""

FEWEST = 4096
"""Of a tensor at least so many elements are kept, if it has them."""

STEP = 109
"""The lattice's shortest vector is at least 0.7 times the square root of `one_in`, whichever that is. Of all
odd numbers none does better, by trial."""

NOTHING = 0
"""`one_in` of a tensor of which only statistics are kept."""

Indices = npt.NDArray[np.int64]


class Level(StrEnum):
    """How much of each tensor a capture keeps: all, the same sample on every side, or statistics alone."""

    FULL = "full"
    SAMPLE = "sample"
    STATS = "stats"


def one_in_of(level: Level, dtype: str, shape: Sequence[int]) -> int:
    """Return that one of so many elements of a tensor is kept: 1 is all of them, 0 none.

    Args:
        level: of the capture.
        dtype: the torch name without `torch.`.
        shape: of this rank's part.
    """
    if level is Level.FULL or not dtype.startswith(("float", "bfloat")) or dtype.startswith("float4"):
        return 1
    elements = prod(shape)
    if level is Level.STATS:
        return NOTHING
    share = min(COARSEST, elements // FEWEST)
    return 1 << (share.bit_length() - 1) if share > 1 else 1


def kept(
    shape: Sequence[int],
    one_in: int,
    *,
    starts: Sequence[int] | None = None,
    whole: Sequence[int] | None = None,
) -> Indices:
    """Return the places of the elements that are kept, in the flat tensor, ascending.

    Args:
        shape: of this rank's part.
        one_in: a power of two.
        starts: where the part begins in a larger tensor, along each dim, where that is known.
        whole: shape of that tensor.

    Returns:
        `[K]`.
    """
    shape, whole = tuple(shape), tuple(whole or shape)
    starts = tuple(starts or (0,) * len(shape))
    if not shape:
        return np.arange(1)
    offsets = np.full((1,), starts[-1] % one_in)
    step = STEP
    for dim in range(len(shape) - 2, -1, -1):
        along = (np.arange(shape[dim]) + starts[dim]) * step % one_in
        offsets = ((along[:, None] + offsets[None, :]) % one_in).reshape(-1)
        step = step * whole[dim] % one_in
    length = shape[-1]
    first = -offsets % one_in
    places = first[:, None] + np.arange(0, length, one_in)[None, :]
    rows = np.arange(len(first))[:, None] * length
    return np.asarray((rows + places)[places < length], dtype=np.int64)


def is_even(count: int, shape: Sequence[int], one_in: int) -> bool:
    """Say whether so many elements are about as many as a sample of a tensor should have.

    Those of a DTensor's part need not be: of single tokens of many sequences, say, a lattice may have none.
    """
    return prod(shape) <= 4 * one_in * count + FEWEST
