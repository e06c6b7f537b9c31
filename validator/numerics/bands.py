"""How far rounding can carry a matrix product or a softmax: analytic rows of NUMERICS section 4.

Each row gives the standard deviation (sigma) of what arithmetic inside an operator adds to its
result, before the one rounding to the storage format, and where it applies a hard bound
(beta) on coherent errors. A result is explained when
`|candidate - y64| <= ulp(y64)/2 + beta + lambda*sigma`. A sum of two values (a residual) adds nothing of its
own: `Noise()`. Values that are only moved have no row; any differing bit is a fault there.
Rows of norms, activations, rotary embedding and attention are in `numerics.operator_bands`.

Shape legend: K = contracted channels, M = output channels, * = any shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.numerics.contractions import FACTORS, fp8_errors, split_terms
from validator.numerics.formats import FORMATS, Format
from validator.numerics.recipes import Recipe
from validator.numerics.ulp import ulp

__all__ = [
    "ALPHA",
    "FLUSH",
    "U32",
    "UNDERFLOW",
    "C",
    "Noise",
    "blocked_lambda",
    "factors_sigma",
    "fp8_sigma",
    "is_explained",
    "matmul_sigma",
    "normal_lambda",
    "partials_sigma",
    "product_noise",
    "softmax_sigma",
    "tail_lambda",
    "truncation_bound",
]

ALPHA = 1e-3
"""Probability of a false alarm of the MAX rule in a whole healthy run."""

C = 0.43
"""Mean over a binade of (standard deviation of one rounding to nearest) / (u |v|)."""

U32 = 2.0**-24
UNDERFLOW = 2.0**-150
"""Half the smallest float32 subnormal: gradual underflow, for each float32 term."""
FLUSH = 2.0**-126
"""Smallest normal float32: underflow of each term on a device that flushes subnormals to zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What rounding inside an operator may do to its result.

    Attributes:
        sigma: `[*]` float64 or 0, the standard deviation.
        bound: `[*]` float64 or 0, a hard bound on coherent errors.
    """

    sigma: Tensor | float = 0.0
    bound: Tensor | float = 0.0


def is_explained(*, exact: Tensor, cand: Tensor, fmt: Format, noise: Noise, multiplier: float) -> Tensor:
    """Tell of each element whether rounding explains it.

    Args:
        exact: `[*]` float64.
        cand: `[*]` in `fmt`, or its values in float64.
        fmt: the storage format.
        noise: of everything before the last rounding.
        multiplier: lambda, of `normal_lambda`, `tail_lambda` or `blocked_lambda`.

    Returns:
        `[*]` boolean; False where one side is NaN or infinite and the other isn't.
    """
    difference = (cand.to(torch.float64) - exact).abs()
    allowed = ulp(exact, fmt) / 2 + noise.bound + multiplier * noise.sigma
    return (difference <= allowed) | (cand == exact) | (cand.isnan() & exact.isnan())


def normal_lambda(elements: int, alpha: float = ALPHA) -> float:
    """Return how many sigmas the largest of `elements` normal errors exceeds with probability `alpha`.

    Source:
        `sqrt(2 ln(2 N / alpha))`: the tail bound `P(|x| > t) <= 2 exp(-t^2 / 2)` and a union bound.
    """
    return math.sqrt(2 * math.log(2 * max(elements, 1) / alpha))


def tail_lambda(elements: int, alpha: float = ALPHA) -> float:
    """Return lambda for float32 sums, whose errors have exponential tails.

    Source:
        `max(lambda, 0.45 ln(2 N / alpha))`, NUMERICS section 4.
    """
    return max(normal_lambda(elements, alpha), 0.45 * math.log(2 * max(elements, 1) / alpha))


def blocked_lambda(elements: int, blocks: int, alpha: float = ALPHA) -> float:
    """Return lambda for float32 sums of `blocks` blocks, whose sums are added up one after the other.

    Source:
        `max(lambda, 0.9 ln(2 N / alpha) / sqrt(blocks))`, NUMERICS section 4.
    """
    tail = 0.9 * math.log(2 * max(elements, 1) / alpha) / math.sqrt(max(blocks, 1))
    return max(normal_lambda(elements, alpha), tail)


def matmul_sigma(
    x: Tensor, w: Tensor, y: Tensor, *, block: int | None = None, u: float = U32, underflow: float = UNDERFLOW
) -> Tensor:
    """Return sigma of a matrix product with a rounding accumulator.

    Args:
        x: `[*, K]` float64.
        w: `[*, K, M]` float64.
        y: `[*, M]` float64, the exact product; a bias, which is added last, may be in it.
        block: terms in a block, where sums are those of blocks; None for an unknown order.
        u: unit roundoff of the accumulator.
        underflow: absolute error of each term.

    Returns:
        `[*, M]` float64.

    Source:
        `0.43 u sqrt(m/2 sum_j a_j^2 + m/3 y^2)` with `m = K`, or `b + K/b` in blocks of b; Higham and Mary
        (2019), Blanchard et al. (2020).
    """
    k = x.shape[-1]
    m = k if block is None else min(block, k) + k / min(block, max(k, 1))
    variance = torch.matmul(x.square(), w.square()).mul_(m / 2)
    variance.add_(y.square(), alpha=m / 3)
    return variance.clamp_min_(0).sqrt_().mul_(C * u).add_(underflow * k)


def truncation_bound(x: Tensor, w: Tensor, y: Tensor, *, bits: int = 13, block: int = 1) -> Tensor:
    """Return the bound of a matrix product whose accumulator cuts off what it can't keep.

    Args:
        x: `[*, K]` float64.
        w: `[*, K, M]` float64.
        y: `[*, M]` float64, the exact product.
        bits: that the accumulator keeps after its leading one.
        block: terms that are added at once, before anything is cut off.

    Returns:
        `[*, M]` float64. Errors go towards zero: the products come out too small.

    Source:
        `2^-bits ((K/b + sqrt(K)) sqrt(sum a^2) + (K/b + K) |y| / 2)`, NUMERICS section 4, from a software
        model; loose.
    """
    k = x.shape[-1]
    blocks = k / min(block, max(k, 1))
    size = torch.matmul(x.square(), w.square()).clamp_min_(0).sqrt_()
    return 2.0**-bits * ((blocks + math.sqrt(k)) * size + 0.5 * (blocks + k) * y.abs())


def partials_sigma(
    parts: Sequence[Tensor], fmt: Format, *, roundings: int | None = None, is_ordered: bool = True
) -> Tensor:
    """Return sigma of partial sums that are kept in a format and added up one after the other.

    Args:
        parts: `[*]` float64 each, in the order in which they are added.
        fmt: the format that they and their sums are kept in.
        roundings: how many sums of the first parts are rounded (the sum of all is the last); by default all
            but the last, whose rounding is the result's own.
        is_ordered: whether the order is known. If not, each sum of `n` parts is taken for the largest that
            any `n` of them have: collectives differ in where they begin, from chunk to chunk of a tensor.

    Returns:
        `[*]` float64.

    Source:
        `0.43 u sqrt(sum parts^2 + sum of the interior prefixes^2)`, NUMERICS section 4, with
        `ulp(v)/sqrt(12)` for the deviation of one rounding of v.
    """
    roundings = len(parts) - 2 if roundings is None else roundings
    stacked = torch.stack(torch.broadcast_tensors(*parts))
    sums = stacked.cumsum(0) if is_ordered else _largest_sums(stacked)
    rounded = torch.cat([stacked, sums[1 : roundings + 1]])
    return torch.sqrt(ulp(rounded, fmt).nan_to_num().square().sum(0) / 12)


def _largest_sums(parts: Tensor) -> Tensor:
    """Return `[n, *]` float64: in place i the largest magnitude that a sum of any i + 1 of n parts has."""
    ascending = parts.sort(0).values
    return torch.maximum(ascending.cumsum(0).abs(), ascending.flip(0).cumsum(0).abs())


def factors_sigma(x: Tensor, w: Tensor, y: Tensor, *, fmt: Format) -> Tensor:
    """Return sigma of a matrix product whose factors are rounded, as TF32 does.

    Args:
        x: `[*, K]` float64.
        w: `[*, K, M]` float64.
        y: `[*, M]` float64, the exact product.
        fmt: what they are rounded to. Where tensors can be stored in it, the product may be rounded too.

    Source:
        `0.43 u sqrt(2 sum a^2)`: each term has two factors, with independent roundings; `ulp/sqrt(12)` for
        that of the product.
    """
    sigma = C * fmt.unit_roundoff * torch.sqrt(2 * torch.matmul(x.square(), w.square()))
    return sigma if fmt.dtype is None else torch.hypot(sigma, ulp(y, fmt).nan_to_num() / math.sqrt(12))


def fp8_sigma(x: Tensor, w: Tensor) -> Tensor:
    """Return sigma of `contractions.fp8_product`: factors in float8_e4m3fn with block scales.

    Args:
        x: `[M, K]` float64.
        w: `[K, N]` float64.

    Source:
        `sqrt(sum_j (dx_j w_j)^2 + (x_j dw_j)^2 + (dx_j dw_j)^2)`, with a step over sqrt(12) for dx and dw.
    """
    dx, dw = (errors.square() for errors in fp8_errors(x, w))
    return torch.sqrt(torch.matmul(dx, w.square() + dw) + torch.matmul(x.square(), dw))


def product_noise(x: Tensor, w: Tensor, y: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    """Return what a recipe allows inside of a matrix product.

    Args:
        x: `[*, K]` float64.
        w: `[*, K, M]` float64.
        y: `[*, M]` float64, the exact product.
        recipe: what may be rounded.
        fmt: the factors' storage format. Narrower factors are for float32, fp8 for products of two matrices.
    """
    u = FORMATS[recipe.accumulate].unit_roundoff
    underflow = FLUSH if recipe.flush_subnormals else UNDERFLOW
    sigma = matmul_sigma(x, w, y, block=recipe.block, u=max(u, 2.0**-53), underflow=underflow)
    if recipe.block is not None and fmt.precision >= 24:
        # Tails of few blocks, as a wider sigma: the multiplier is that of unknown orders.
        blocks = math.ceil(x.shape[-1] / recipe.block)
        sigma = sigma * max(1.0, blocked_lambda(_MANY, blocks) / tail_lambda(_MANY))
    bound: Tensor | float = 0.0
    if recipe.accumulator_bits is not None:
        bound = truncation_bound(x, w, y, bits=recipe.accumulator_bits, block=recipe.block or 1)
    if recipe.split_k > 1 and recipe.partials != "float32":
        parts = [part @ rows for part, rows in split_terms(_matrix(x), w, recipe.split_k)]
        partials = FORMATS[recipe.partials]
        roundings = len(parts) - (1 if partials.precision < fmt.precision else 2)
        of_parts = partials_sigma(parts, partials, roundings=roundings) if len(parts) > 1 else torch.zeros(())
        sigma = torch.hypot(sigma, of_parts.reshape(y.shape) if of_parts.dim() else of_parts.double())
    if recipe.factors != "float32" and fmt.name == "float32":
        sigma = torch.hypot(sigma, factors_sigma(x, w, y, fmt=FACTORS[recipe.factors]))
    if recipe.fp8 and w.dim() == 2:
        rows = x.reshape(-1, x.shape[-1])
        sigma = torch.hypot(sigma, fp8_sigma(rows, w).reshape(y.shape))
    return Noise(sigma=sigma, bound=bound)


_MANY = 10**12
"""Elements of a large run."""


def _matrix(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 1 else x


def softmax_sigma(
    scores: Tensor, p: Tensor, *, dim: int, score_error: Tensor | float = 0.0, u: float = U32
) -> Tensor:
    """Return sigma of a softmax.

    Args:
        scores: `[*]` float64; minus infinity where masked.
        p: `[*]` float64, the exact probabilities.
        dim: dim that sums to one.
        score_error: `[*]` standard deviation of the scores' own error.
        u: unit roundoff of the arithmetic inside.

    Returns:
        `[*]` float64.

    Source:
        Blanchard, Higham and Higham (2021), in NUMERICS section 4: `p_i sqrt(ds_i^2 + sum_j p_j^2 ds_j^2)`,
        `ds = 0.43 u 3 (1 + max(|s|, |s - s_max|)) + score_error`, and `0.43 u sqrt(n/12) p_i` for the sum.
    """
    finite = scores.masked_fill(scores == -math.inf, 0.0)
    magnitude = torch.maximum(finite.abs(), (finite - finite.amax(dim, keepdim=True)).abs())
    ds = C * u * 3 * (1 + magnitude) + score_error
    shared = (p * ds).square().sum(dim, keepdim=True)
    n = scores.shape[dim]
    return p * torch.sqrt(ds.square() + shared) + C * u * math.sqrt(n / 12) * p + 2.0**-149
