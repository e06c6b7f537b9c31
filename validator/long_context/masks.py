"""Entries of logits that stand for tokens never to be chosen: what pads a vocabulary, or is forbidden.

Shape legend: * = any shape.
"""

from torch import Tensor

__all__ = ["MASKED", "masked_alike"]

MASKED = 4096.0
"""No model's logit: what is as large stands for an entry that is never chosen. Code masks with -10000, -1e9,
the lowest number of a format (-65504 in float16), or minus infinity; exp(-4096) is 0 in every format."""


def masked_alike(one: Tensor, other: Tensor) -> Tensor:
    """Return `[*]` whether both of two logits mask an entry, whatever each masks it with.

    The lowest number of one format is not that of another, nor is a constant the same once it is rounded.
    """
    return (one < -MASKED) & (other < -MASKED)
