"""Scaled dot product attention as one operator: its value, and what a kernel may round inside it.

Shape legend: * = batch and heads; S = queries, T = keys, D = channels of a head.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.checks.products import multiply
from validator.numerics.bands import C, Noise, product_noise
from validator.numerics.formats import Format, format_of
from validator.numerics.operator_bands import attention_noise
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["Attention", "attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Output of attention in float64, and what a kernel may round inside.

    Attributes:
        output: `[*, S, D]`.
        noise: of its arithmetic, None where not asked for.
        bound: `[*, S, D]`, what coherent rounding of the probabilities comes to, or None.
    """

    output: Tensor
    noise: Noise | None = None
    bound: Tensor | None = None


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
    storage: Format,
    recipe: Recipe | None = None,
    with_noise: bool = False,
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
        storage: format of the operands, in which a kernel may keep the probabilities for the second product,
            and with `inner="storage"` the scores. Formats wider than 16 bits round nothing more than float32
            does.
        recipe: what the kernel may round; None for the oracle.
        with_noise: whether to compute what may be rounded, in place of rounding the probabilities.

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
    is_simulated = recipe is not None and not with_noise

    def product(a: Tensor, b: Tensor) -> Tensor:
        return multiply(a, b, recipe, storage) if is_simulated and recipe is not None else a @ b

    scores = product(query, key.transpose(-2, -1)) * scale
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        )
    p = torch.softmax(scores, -1).nan_to_num(nan=0.0)
    narrow = storage if storage.precision < 24 else None
    if recipe is None or not with_noise:
        weights = p if narrow is None or recipe is None else round_nearest(p, narrow)
        return Attention(output=product(weights, value))
    output = p @ value
    finite = scores.masked_fill(scores == -math.inf, 0.0)
    magnitude = torch.maximum(finite.abs(), (finite - finite.amax(-1, keepdim=True)).abs())
    of_scores = product_noise(query, key.transpose(-2, -1), finite / scale, recipe, storage)
    u = max(format_of(fmt).unit_roundoff for fmt in (recipe.operators, recipe.sums))
    ds = C * u * 3 * (1 + magnitude) + abs(scale) * (of_scores.sigma + of_scores.bound)
    if recipe.inner == "storage" and narrow is not None:
        ds = torch.hypot(ds, C * math.sqrt(2) * narrow.unit_roundoff * finite.abs())
    of_output = product_noise(p, value, output, recipe, storage)
    noise = attention_noise(
        p, value, output, ds=ds, probabilities=narrow, product_sigma=torch.as_tensor(of_output.sigma)
    )
    bound = noise.bound if isinstance(noise.bound, Tensor) else None
    return Attention(output=output, noise=Noise(sigma=noise.sigma, bound=of_output.bound), bound=bound)
