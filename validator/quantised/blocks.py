"""Blocks of codes that share a scale, of which the last in a row or column may be shorter than the others.

Shape legend: N = rows of codes, K = columns; n, k = rows and columns of scales.
"""

from collections.abc import Sequence
from math import gcd

from torch import Tensor

__all__ = ["block_size", "is_ambiguous", "is_grid", "scales_of_equal_blocks"]

_SIDES = (16, 32, 64, 128, 256)


def block_size(scale: Sequence[int], codes: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and columns of the blocks that shapes alone tell of; None where the scales are no grid.

    Args:
        scale: `[*, n, k]`.
        codes: `[*, N, K]`.

    Blocks are square, with a power of 2 that kernels have, or all of one size. What can be read as both, with
    different scales, is None too, which `is_ambiguous` tells.
    """
    if len(scale) != len(codes) or len(codes) < 2 or tuple(scale[:-2]) != tuple(codes[:-2]):
        return None
    if not all((*scale, *codes)) or is_ambiguous(scale, codes):
        return None
    square, equal = _square(scale, codes), _equal(scale, codes)
    return square if equal is None or (square is not None and min(scale[-2:]) > 1) else equal


def is_ambiguous(scale: Sequence[int], codes: Sequence[int]) -> bool:
    """Tell whether a row or a column of scales can be read in two ways that give codes different scales.

    2 scales of 192 rows may be those of two weights that were put together, or of 128 and of 64 rows. With
    several rows and several columns of scales they are those of kernels' blocks.
    """
    if len(scale) != len(codes) or len(codes) < 2 or not all((*scale, *codes)) or min(scale[-2:]) > 1:
        return False
    square, equal = _square(scale, codes), _equal(scale, codes)
    if square is None or equal is None:
        return False
    ways = zip(square, equal, scale[-2:], strict=True)
    return any(count > 1 and side != other for side, other, count in ways)


def _square(scale: Sequence[int], codes: Sequence[int]) -> tuple[int, int] | None:
    return next(((side, side) for side in _SIDES if is_grid(scale, codes, (side, side))), None)


def _equal(scale: Sequence[int], codes: Sequence[int]) -> tuple[int, int] | None:
    pairs = tuple(zip(codes[-2:], scale[-2:], strict=True))
    if any(size % count for size, count in pairs):
        return None
    return codes[-2] // scale[-2], codes[-1] // scale[-1]


def is_grid(scale: Sequence[int], codes: Sequence[int], block: Sequence[int]) -> bool:
    """Tell whether scales `[*, n, k]` are those of blocks of a size in codes `[*, N, K]`."""
    return len(scale) == len(codes) > 1 and all(
        -(-size // side) == count for size, count, side in zip(codes[-2:], scale[-2:], block, strict=True)
    )


def scales_of_equal_blocks(scale: Tensor, codes: Sequence[int], block: Sequence[int]) -> Tensor:
    """Return the scales of smaller blocks, all of one size, that give each code the scale that it has.

    Libraries take the size of a block to be that of the codes over that of the scales.

    Args:
        scale: `[*, n, k]`, of blocks of which the last ones may be shorter.
        codes: `[*, N, K]`, the shape of the codes.
        block: rows and columns of a block.
    """
    for dim, size, side in zip((-2, -1), codes[-2:], block, strict=True):
        if size % side and scale.shape[dim] > 1:
            whole = gcd(size, side)
            scale = scale.repeat_interleave(side // whole, dim).narrow(dim, 0, size // whole)
    return scale
