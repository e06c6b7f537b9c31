"""Blocks of codes that share a scale, of which the last in a row or column may be shorter than the others.

Shape legend: N = rows of codes, K = columns; n, k = rows and columns of scales.
"""

from collections.abc import Sequence
from math import gcd

from torch import Tensor

__all__ = ["block_size", "is_grid", "scales_of_equal_blocks"]


def block_size(scale: Sequence[int], codes: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and columns of the blocks that shapes alone tell of; None where the scales are no grid.

    Args:
        scale: `[*, n, k]`.
        codes: `[*, N, K]`.

    Square blocks of a power of 2, as kernels have them, go before all others: 2 scales of 96 rows may be
    those of 64 and of 32 rows. What is no such grid has blocks of equal size.
    """
    if len(scale) != len(codes) or len(codes) < 2 or tuple(scale[:-2]) != tuple(codes[:-2]):
        return None
    if not all((*scale, *codes)):
        return None
    equal = [-(-size // count) for size, count in zip(codes[-2:], scale[-2:], strict=True)]
    side = 1 << (max(equal) - 1).bit_length()
    if is_grid(scale, codes, (side, side)):
        return side, side
    whole = all(not size % count for size, count in zip(codes[-2:], scale[-2:], strict=True))
    return (equal[0], equal[1]) if whole else None


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
