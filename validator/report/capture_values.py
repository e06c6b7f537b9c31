"""What the statistics of a stored tensor leave open, from its values.

- Infinities are a mask's where all of them are negative. An overflow that is negative throughout looks like
  a mask; what is computed of it soon is NaN, which is found.
- How many elements are below the smallest normal value is counted where that can matter: rounding to a
  multiple of the quantum, `2 u min_normal`, moves an element by at most `u min_normal`. That is more than
  the rounding of a typical element, `u rms`, only where the root mean square is below the smallest normal
  value.
"""

from collections.abc import Callable, Sequence

import torch

from validator.capturing.levels import NOTHING
from validator.capturing.records import Statistics, TensorRef
from validator.numerics.formats import Format

__all__ = ["first_index", "has_mask_infinities", "shares"]


def shares(numbers: Statistics, fmt: Format, refs: Sequence[TensorRef]) -> tuple[float | None, float | None]:
    """Return the shares of zeros, and of elements below the smallest normal value that are not 0.

    Args:
        numbers: of all elements.
        fmt: their format.
        refs: the tensors, to be read if the extremes don't tell; none of them are not to be read.

    Returns:
        Of the elements that are known and not NaN; None where a share is not known.
    """
    if numbers.min == numbers.max == 0:
        return 1.0, 0.0
    if numbers.min >= fmt.min_normal or numbers.max <= -fmt.min_normal:
        return 0.0, 0.0
    if not refs or any(ref.meta.one_in == NOTHING for ref in refs):
        return (0.0 if numbers.min > 0 or numbers.max < 0 else None), None
    known = zeros = small = 0
    for block in (block for ref in refs for block in ref.blocks()):
        sizes = block.to(torch.float64).abs()
        known += int((~sizes.isnan()).sum())
        zeros += int((sizes == 0).sum())
        small += int((sizes < fmt.min_normal).sum())
    return (zeros / known, (small - zeros) / known) if known else (None, None)


def has_mask_infinities(ref: TensorRef, numbers: Statistics) -> bool:
    """Whether the infinities of a tensor are negative, all of them, and it has no NaN.

    Where no value is kept, a tensor whose finite elements are all 0 is taken for a mask.
    """
    if numbers.nan:
        return False
    if ref.meta.one_in == NOTHING:
        return numbers.min == numbers.max == 0
    infinite = torch.cat([block[block.isinf()] for block in map(torch.Tensor.double, ref.blocks())])
    return len(infinite) > 0 and bool((infinite < 0).all())


def first_index(ref: TensorRef, test: Callable[[torch.Tensor], torch.Tensor]) -> tuple[int, ...] | None:
    """Return the index of the first element that passes a test; None where not all values are kept."""
    if ref.meta.one_in != 1:
        return None
    flags = test(ref.read().double()).reshape(-1)
    if not flags.any():
        return None
    place = torch.unravel_index(flags.int().argmax(), ref.meta.shape)
    return tuple(int(i) for i in place)
