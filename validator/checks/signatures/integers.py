"""Integers that are off by one number: positions that start again, ids that are shifted.

Shape legend: * = the edge's shape.
"""

import torch
from torch import Tensor

from validator.align.traces import Part
from validator.checks.findings import Signature
from validator.checks.signatures.regions import region_words
from validator.checks.signatures.subject import Subject
from validator.numerics.formats import FORMATS

__all__ = ["integer_offset"]

MINIMUM = 2
"""One integer that differs is off by some number whatever is wrong with it."""


def integer_offset(
    *, exact: Tensor, cand: Tensor, judged: Tensor, dims: tuple[str, ...], parts: tuple[Part, ...] = ()
) -> Signature | None:
    """Say by which number integers are off, where it is one number for all that differ.

    Args:
        exact: `[*]` integers.
        cand: `[*]` integers.
        judged: `[*]` boolean.
        dims: meaning of each dim.
        parts: which rank holds which box of the edge.

    Returns:
        `offset`, with the `offset` and where it is, or None.
    """
    if exact.is_floating_point() or exact.dtype is torch.bool:
        return None
    difference = cand.to(torch.int64) - exact.to(torch.int64)
    differs = judged & (difference != 0)
    found = difference[differs]
    if len(found) < MINIMUM or not bool((found == found[0]).all()):
        return None
    edge = Subject(
        exact=exact.to(torch.float64),
        cand=cand.to(torch.float64),
        allowed=torch.full(exact.shape, 0.5, dtype=torch.float64),
        fmt=FORMATS["float64"],
        judged=judged,
        dims=dims,
        parts=parts,
    )
    words = region_words(edge, differs)
    within = {} if words is None else {"within": words}
    return Signature(kind="offset", parameters={"offset": int(found[0]), **within}, residual_ulp=0.0)
