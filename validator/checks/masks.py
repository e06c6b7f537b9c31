"""Additive masks of float16: its lowest number stands for minus infinity, and large scores overcome it.

A kernel that takes the mask as booleans never sees a masked key, and neither does the float64 oracle.
Code that adds -65504 to a score of -70000 prefers the masked keys; that is a limit of the format that
the code was written in, and no part of what the model is to compute.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["with_far_masks"]

LOWEST = torch.finfo(torch.float16).min
FAR = torch.finfo(torch.float32).min
OVERCOMING = 2.0**15
"""Scores of half the mask's size, and no smaller ones, can come near it."""


def with_far_masks(leaves: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[Any]:
    """Return the terms of a sum, float16 masks among them made as low as float32 goes where it matters.

    Args:
        leaves: the flattened arguments of an addition, tensors in float64.
        dtypes: what the code sees of the tensors.

    A mask is a tensor that holds zeros and the lowest number of float16, and nothing else.
    """
    tensors = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    if len(tensors) != 2 or torch.float16 not in dtypes:
        return list(leaves)
    made = list(leaves)
    for here, other in (tensors, reversed(tensors)):
        term, score = leaves[here], leaves[other]
        is_masked = term == LOWEST
        if is_masked.any() and (is_masked | (term == 0)).all() and (score.abs() > OVERCOMING).any():
            made[here] = term.masked_fill(is_masked, FAR)
    return made
