"""Scaled dot product attention as one operator: its value, and what a kernel may round inside it.

Shape legend: * = batch and heads; S = queries, T = keys, D = channels of a head.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.numerics.bands import U32, UNDERFLOW, C, matmul_sigma
from validator.numerics.formats import Format
from validator.numerics.rounding import round_nearest

__all__ = ["Attention", "attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Output of attention in float64 with its sigma and coherent bound (both None where not asked for)."""

    output: Tensor
    sigma: Tensor | None
    bound: Tensor | None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    storage: Format | None = None,
    rounded_scores: bool = False,
    with_sigma: bool = False,
) -> Attention:
    """Compute scaled dot product attention, and what a kernel may round inside it.

    Args:
        query: `[*, S, D]`.
        key: `[*, T, D]`.
        value: `[*, T, D]`.
        attn_mask: broadcastable to `[*, S, T]`, boolean (True takes part) or additive.
        dropout_p: must be 0: a check is made of a model in eval mode.
        is_causal: a query sees the keys up to its own position.
        scale: of the scores, default `1/sqrt(D)`.
        enable_gqa: a key head serves several query heads.
        storage: format in which the kernel may keep the probabilities for the second product, or None for the
            oracle. Formats wider than 16 bits round nothing more than float32 does.
        rounded_scores: whether scores may be kept in `storage` too.
        with_sigma: whether to compute sigma and bound.

    Returns:
        The output; a query with no key gives zeros, as torch's kernels do.

    Source:
        NUMERICS section 4, row "attention"; Blanchard, Higham and Higham (2021).
    """
    if dropout_p:
        raise RuntimeError(f"attention with dropout_p={dropout_p} in a model that is in eval mode")
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        )
    p = torch.softmax(scores, -1).nan_to_num(nan=0.0)
    is_narrow = storage is not None and storage.precision < 24
    if storage is None or not with_sigma:
        weights = round_nearest(p, storage) if is_narrow and storage is not None else p
        return Attention(output=weights @ value, sigma=None, bound=None)
    output = p @ value
    finite = scores.masked_fill(scores == -math.inf, 0.0)
    magnitude = torch.maximum(finite.abs(), (finite - finite.amax(-1, keepdim=True)).abs())
    score_sigma = matmul_sigma(query, key.transpose(-2, -1), finite / scale) * abs(scale)
    ds = C * U32 * 3 * (1 + magnitude) + score_sigma
    u_p = storage.unit_roundoff if is_narrow else 0.0
    if rounded_scores and is_narrow:
        ds = torch.hypot(ds, C * math.sqrt(2) * u_p * finite.abs())
    p_ds = (p * ds).square()
    spread = (
        p_ds @ value.square() - 2 * output * (p_ds @ value) + output.square() * p_ds.sum(-1, keepdim=True)
    )
    squares = p.square() @ value.square()
    keys = key.shape[-2]
    sigma = torch.sqrt(
        spread.clamp_min(0)
        + (C * u_p) ** 2 * squares
        + (C * U32) ** 2 * (keys / 2 * squares + keys / 3 * output.square())
    )
    bound = u_p * output.abs() if is_narrow else None
    return Attention(output=output, sigma=sigma + UNDERFLOW * keys, bound=bound)
