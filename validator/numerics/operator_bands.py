"""How far rounding can carry norms, activations, rotary embedding and attention: rows of NUMERICS section 4.

Rows are of float32 arithmetic unless `u`, the unit roundoff of the arithmetic inside, says otherwise.

Shape legend: * = any shape; N = normalised channels; S = queries, T = keys, D = channels of a head.
"""

import math

import torch
from torch import Tensor

from validator.numerics.bands import FLUSH, U32, UNDERFLOW, C, Noise
from validator.numerics.formats import Format
from validator.numerics.ulp import ulp

__all__ = [
    "attention_noise",
    "gelu_noise",
    "layer_norm_noise",
    "rms_norm_noise",
    "rope_noise",
    "silu_noise",
    "sum_noise",
]


def rms_norm_noise(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float,
    cast: Format | None = None,
    is_sequential: bool = False,
    u: float = U32,
) -> Noise:
    """Return what rounding does inside of an RMS norm.

    Args:
        x: `[*, N]` float64.
        weight: `[N]` float64; of a norm that multiplies by `1 + w`, that sum.
        eps: added to the mean square.
        cast: format that the normalised value is rounded to before it is multiplied by the weight.
        is_sequential: whether the squares are summed one after the other.
        u: unit roundoff of the arithmetic inside.

    Source:
        `0.43 u |y| sqrt(n/12 + 3)`; "cast, then times w" adds `beta = |w| ulp(x_hat)/2`, a sequential sum
        `beta = u (n/2) |y|`.
    """
    n = x.shape[-1]
    hat = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    size = (hat * weight).abs()
    bound: Tensor | float = 0.0
    if cast is not None:
        bound = bound + weight.abs() * ulp(hat, cast) / 2
    if is_sequential:
        bound = bound + u * n / 2 * size
    return Noise(sigma=C * u * size * math.sqrt(n / 12 + 3), bound=bound)


def layer_norm_noise(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    dims: int = 1,
    eps: float,
    is_one_pass: bool = False,
    u: float = U32,
) -> Noise:
    """Return what rounding does inside of a layer norm.

    Args:
        x: `[*, N]` float64.
        weight: `[N]` float64, or None for ones.
        bias: `[N]` float64, or None for zeros.
        dims: how many last dims are normalised.
        eps: added to the variance.
        is_one_pass: whether the variance is the mean square less the squared mean.
        u: unit roundoff of the arithmetic inside.

    Source:
        `0.43 u sqrt((|x_hat w| sqrt(n/12 + 3))^2 + (|w| rstd (|x| + sqrt(n/3 + 1) mean|x|))^2 + y^2)`, with
        `x_hat w`, not y: the bias must not count. One pass adds
        `0.43 u |x_hat w| sqrt(n/3 + 3) (mean^2 + var) rstd^2`.
    """
    over = list(range(-dims, 0))
    n = math.prod(x.shape[-dims:])
    mean = x.mean(over, keepdim=True)
    variance = (x - mean).square().mean(over, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    w = torch.ones_like(x) if weight is None else weight
    scaled = (x - mean) * rstd * w
    y = scaled if bias is None else scaled + bias
    shift = w.abs() * rstd * (x.abs() + math.sqrt(n / 3 + 1) * x.abs().mean(over, keepdim=True))
    total = (scaled * math.sqrt(n / 12 + 3)).square() + shift.square() + y.square()
    if is_one_pass:
        cancelled = (mean.square() + variance) * rstd.square()
        total = total + (scaled * math.sqrt(n / 3 + 3) * cancelled).square()
    return Noise(sigma=C * u * total.sqrt())


def silu_noise(x: Tensor, *, eager: Format | None = None, u: float = U32) -> Noise:
    """Return what rounding does inside of `x sigmoid(x)`.

    Args:
        x: `[*]` float64.
        eager: format that the sigmoid is rounded to before it is multiplied.
        u: unit roundoff of the arithmetic inside.

    Source:
        `0.43 u |y| (3 + |x|)`, `beta = |x| 2^-126`: below -88 `exp(-x)` overflows, and the result is 0. Eager
        adds `beta = |x| ulp(sigmoid)/2`.
    """
    gate = torch.sigmoid(x)
    bound = x.abs() * FLUSH
    if eager is not None:
        bound = bound + x.abs() * ulp(gate, eager) / 2
    return Noise(sigma=C * u * (x * gate).abs() * (3 + x.abs()), bound=bound)


def gelu_noise(x: Tensor, y: Tensor, *, u: float = U32) -> Noise:
    """Return what rounding does inside of a GELU, by erf or by tanh.

    Args:
        x: `[*]` float64.
        y: `[*]` float64, the exact result.
        u: unit roundoff of the arithmetic inside.

    Source:
        `0.43 u (3|y| + 2|x|)`, `beta = 2^-126`: in the tail a term as large as x cancels.
    """
    return Noise(sigma=C * u * (3 * y.abs() + 2 * x.abs()), bound=torch.full_like(y, FLUSH))


def rope_noise(a: Tensor, b: Tensor, angle: Tensor, *, eager: Format | None = None, u: float = U32) -> Noise:
    """Return what rounding does inside of a rotary embedding, `a cos(angle) + b sin(angle)`.

    Args:
        a: `[*]` float64, the element that is turned.
        b: `[*]` float64, its partner, with its sign.
        angle: `[*]` float64, position times inverse frequency, which float32 holds no better than to
            `u |angle|`.
        eager: format that products and sum are rounded to.
        u: unit roundoff of the arithmetic inside.

    Source:
        `0.43 u sqrt((2 L1)^2 + (2 angle |dy/dangle|)^2)`, `L1 = |a cos| + |b sin|`; eager adds
        `beta = 2 u L1` in its format.
    """
    cos, sin = angle.cos(), angle.sin()
    size = (a * cos).abs() + (b * sin).abs()
    slope = (b * cos - a * sin).abs()
    sigma = C * u * torch.sqrt((2 * size).square() + (2 * angle * slope).square())
    return Noise(sigma=sigma, bound=0.0 if eager is None else 2 * eager.unit_roundoff * size)


def sum_noise(squares: Tensor, total: Tensor, terms: Tensor | float, *, fmt: Format) -> Noise:
    """Return what rounding does to a sum.

    Args:
        squares: `[*]` float64, the sum of the terms' squares.
        total: `[*]` float64, the sum.
        terms: `[*]` or a number, how many.
        fmt: of the running sum. Narrower than float32 it is taken to be summed one after the other, where
            terms below half an ulp of it are lost.

    Source:
        `0.43 u sqrt(m/2 sum a^2 + m/3 y^2)` as of products; a sequential sum adds `beta = u (m/2) |y|`.
    """
    u = fmt.unit_roundoff
    sigma = C * u * (terms / 2 * squares + terms / 3 * total.square()).clamp_min(0).sqrt()
    return Noise(sigma=sigma, bound=0.0 if fmt.precision >= 24 else u * terms / 2 * total.abs())


def attention_noise(
    p: Tensor,
    value: Tensor,
    output: Tensor,
    *,
    ds: Tensor,
    probabilities: Format | None = None,
    product_sigma: Tensor | None = None,
) -> Noise:
    """Return what rounding does inside of attention.

    Args:
        p: `[*, S, T]` float64, the exact probabilities.
        value: `[*, T, D]` float64.
        output: `[*, S, D]` float64, `p @ value`.
        ds: `[*, S, T]` float64, standard deviation of each exponent: the softmax's own and the scores'.
        probabilities: format in which they are kept for the second product, None for float32. A query with
            one key is exact.
        product_sigma: `[*, S, D]` float64, sigma of the second product; by default that of float32 sums in
            unknown order.

    Source:
        `sqrt(sum p^2 (v - o)^2 ds^2 + (0.43 u_P)^2 sum p^2 v^2 + (0.43 u32)^2 (T/2 sum p^2 v^2 + T/3 o^2))`;
        probabilities in 16 bits add `beta = u_P |o|`, since near-equal ones round coherently.
    """
    p_ds = (p * ds).square()
    # The square of a difference in three products: no [S, T, D] is made.
    spread = (
        p_ds @ value.square() - 2 * output * (p_ds @ value) + output.square() * p_ds.sum(-1, keepdim=True)
    ).clamp_min(0)
    squares = p.square() @ value.square()
    keys = value.shape[-2]
    if product_sigma is None:
        product_sigma = C * U32 * torch.sqrt(keys / 2 * squares + keys / 3 * output.square())
        product_sigma = product_sigma + UNDERFLOW * keys
    u_p = 0.0 if probabilities is None else probabilities.unit_roundoff
    is_sum = (p.count_nonzero(-1) > 1).unsqueeze(-1)
    sigma = torch.sqrt(spread + (C * u_p) ** 2 * squares * is_sum + product_sigma.square())
    return Noise(sigma=sigma, bound=u_p * output.abs() * is_sum)
