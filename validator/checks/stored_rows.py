"""A parameter that is known by the hashes of its rows, against the reference's values.

Shape legend: R = rows, D = elements of a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from validator.capturing.digest import row_hashes
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest
from validator.quantised.rows import differing_coded_rows, is_coded

__all__ = ["differing_rows", "rounded_to"]

BLOCK = 1 << 22
"""So many elements at a time are rounded to be hashed."""


def differing_rows(reference: Tensor, dtype: str, hashes: Sequence[str]) -> list[int]:
    """Return which rows are others than the reference's, rounded once.

    Args:
        reference: `[R, *]`; below 2 dims the whole tensor is one row.
        dtype: the candidate's, the torch name without `torch.`.
        hashes: `[R]` of the candidate's rows, as `digest.row_hashes` makes them, or of a quantised weight as
            `quantised.rows` does.

    Raises:
        CaptureError: they are hashes of codes that can't be compared with the reference's.
    """
    if is_coded(hashes):
        return differing_coded_rows(getattr(reference, "read_parts", dict)(), hashes)
    wanted: torch.dtype = getattr(torch, dtype)
    rows_RD = reference.reshape(len(hashes), -1)
    differing = []
    step = max(1, BLOCK // max(1, rows_RD.shape[1]))
    for start in range(0, len(hashes), step):
        exact, _ = row_hashes(rounded_to(rows_RD[start : start + step], wanted).to(wanted))
        theirs = zip(exact, hashes[start : start + step], strict=True)
        differing += [start + i for i, (ours, other) in enumerate(theirs) if ours != other]
    return differing


def rounded_to(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `[*]` rounded once to a floating dtype, in float64; other numbers as they are."""
    if reference.is_floating_point() and dtype.is_floating_point:
        return round_nearest(reference.to(torch.float64), format_of(dtype))
    return reference
