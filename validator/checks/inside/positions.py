"""Which elements of a value inside of a module are judged: those that no mask hides.

Shape legend: B = sequences, T = tokens, * = the value's shape.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["hidden_scores", "real_rows"]


def real_rows(real: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Return `[*]` boolean, the elements to judge, or None for all.

    Args:
        real: `[B, T]` boolean, or None for all.
        shape: of the value. Its first dim may be the sequences, the heads of each in turn, or all tokens;
            queries come before keys, and heads before tokens, unless only the other order fits.
    """
    if real is None or not shape:
        return None
    batch, tokens = real.shape
    rows, rest = shape[0], list(shape[1:])
    if rows == batch * tokens:
        return _spread(real.reshape(-1), 0, shape)
    if rows % batch:
        return None
    dims = [i for i, size in enumerate(rest) if size == tokens]
    if not dims:
        return None
    # Of [B, T, heads, T] and [B, heads, T, T] the second is usual.
    dim = dims[-2] if len(dims) > 1 else dims[0]
    known = real.repeat_interleave(rows // batch, 0)
    sizes = [rows, *[tokens if i == dim else 1 for i in range(len(rest))]]
    return known.reshape(sizes).expand(tuple(shape))


def hidden_scores(exact: Tensor, value: Tensor) -> Tensor:
    """Return `[*]` boolean, where both sides have a score that a mask hides, however large they make it.

    Args:
        exact: `[*]` the oracle's value.
        value: `[*]` the candidate's. Of another shape, or no floating tensor, it has none.
    """
    if not value.is_floating_point() or not exact.is_floating_point() or exact.shape != value.shape:
        return torch.zeros(value.shape, dtype=torch.bool)
    floor = torch.finfo(value.dtype).min / 4
    return (exact <= floor) & (value.to(torch.float64) <= floor)


def _spread(known: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    sizes = [1] * len(shape)
    sizes[dim] = shape[dim]
    return known.reshape(sizes).expand(tuple(shape))
