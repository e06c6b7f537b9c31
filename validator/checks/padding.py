"""Which positions of each call of the model the attention mask calls real: the others are padding.

Shape legend: B = sequences, T = tokens of a call of the model, t = tokens so far, in a run of steps.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from validator.align.steps import tokens_of
from validator.align.traces import TraceCall
from validator.capturing.records import Call, RankCapture, TensorRef

__all__ = ["Real", "real_of", "real_positions"]

Real = Mapping[tuple[str, int], Tensor]
"""`[B, T]` boolean by `(module, n)` of an outermost call; of one that is not named all positions are real."""


def real_positions(ref: RankCapture) -> Real | None:
    """Return the real positions of each outermost call, or None where all are real.

    Args:
        ref: the reference's run. The masks are those that the model itself was given.
    """
    masks = {(call.module, call.n): _real(call) for call in ref.calls if call.parent is None}
    padded = {key: mask for key, mask in masks.items() if mask is not None and not bool(mask.all())}
    return padded or None


def real_of(call: TraceCall, real: Real | None) -> Tensor | None:
    """Return `[B, T]` boolean, the real positions of the outermost call around a call, or None for all."""
    return None if real is None else real.get(call.root)


def _real(call: Call) -> Tensor | None:
    given, tokens = call.inputs.get("attention_mask"), tokens_of(call)
    if not isinstance(given, TensorRef) or len(given.meta.shape) != 2:
        return None
    mask = given.read().to(torch.bool)
    # A step is given the mask [B, t] of all tokens so far, its own are the last ones.
    return mask if tokens is None else mask[:, -tokens.meta.shape[1] :]
