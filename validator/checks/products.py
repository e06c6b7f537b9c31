"""Matrix products under a recipe: what it may do inside of them, and what they give when it does.

Shape legend: * = batch; M = rows, K = terms, N = columns.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from validator.numerics.bands import UNDERFLOW, C, Noise, product_noise
from validator.numerics.contractions import (
    FACTORS,
    Accumulation,
    Order,
    fp8_product,
    product_of_parts,
    sum_products,
)
from validator.numerics.formats import FORMATS, Format
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["PRODUCTS", "multiply", "noise_of_product", "simulated_product"]


def multiply(a: Tensor, b: Tensor, recipe: Recipe, fmt: Format) -> Tensor:
    """Multiply matrices as a recipe allows, one term after the other where it leaves the order open.

    Args:
        a: `[*, M, K]` float64.
        b: `[*, K, N]` float64.
        recipe: what is rounded.
        fmt: the factors' storage format.

    Returns:
        `[*, M, N]` float64; exact where the recipe rounds no more than float32 sums do.
    """
    accumulator = FORMATS[recipe.accumulate]
    how = Accumulation(
        fmt=accumulator,
        order=Order.SEQUENTIAL if recipe.block is None else Order.BLOCKED,
        block=recipe.block,
        bits=recipe.accumulator_bits,
    )
    is_exact = accumulator.precision >= 24 and recipe.accumulator_bits is None
    if recipe.fp8 and a.dim() == b.dim() == 2:
        return fp8_product(a, b, how)
    if recipe.factors != "float32" and fmt.name == "float32":
        a, b = (round_nearest(x, FACTORS[recipe.factors]) for x in (a, b))
    return product_of_parts(
        a,
        b,
        parts=recipe.split_k if recipe.partials != "float32" else 1,
        fmt=FORMATS[recipe.partials],
        summed=torch.matmul if is_exact else lambda a, b: sum_products(a, b, how),
    )


def noise_of_product(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, recipe: Recipe, fmt: Format
) -> Noise:
    """Return what a recipe allows inside of an operator of `PRODUCTS`.

    Args:
        name: from `operator_name`.
        args: the operator's arguments, floating tensors in float64.
        kwargs: its keyword arguments.
        result: what it returned in float64.
        recipe: what may be rounded.
        fmt: the factors' storage format.
    """
    return PRODUCTS[name](args, kwargs, result, recipe, fmt)


def simulated_product(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], recipe: Recipe, fmt: Format
) -> Tensor | None:
    """Return what an operator of `PRODUCTS` gives under a recipe, or None where that can't be simulated.

    Args:
        name: from `operator_name`.
        args: the operator's arguments, floating tensors in float64.
        kwargs: its keyword arguments.
        recipe: what is rounded.
        fmt: the factors' storage format.
    """
    match name:
        case "mm" | "bmm":
            return multiply(args[0], args[1], recipe, fmt)
        case "addmm" | "baddbmm":
            product = multiply(args[1], args[2], recipe, fmt)
            total: Tensor = kwargs.get("beta", 1) * args[0] + kwargs.get("alpha", 1) * product
            return total
        case "mv":
            return multiply(args[0], args[1][:, None], recipe, fmt)[:, 0]
        case "dot":
            return multiply(args[0][None], args[1][:, None], recipe, fmt).reshape(())
        case "_grouped_mm":
            return torch.cat([multiply(x, w, recipe, fmt) for x, w, _ in _groups(*args[:3])])
    return None


def _matmul(args: Any, kwargs: Any, result: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    return product_noise(args[0], args[1], result, recipe, fmt)


def _addmm(args: Any, kwargs: Any, result: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    product = args[1] @ args[2]
    noise = _scaled(product_noise(args[1], args[2], product, recipe, fmt), abs(alpha))
    # The sum with the bias is rounded, which may be far larger than the product; what is scaled once more.
    size = result.abs() if beta == 1 and alpha == 1 else result.abs() + (alpha * product).abs()
    return _with(noise, C * FORMATS["float32"].unit_roundoff * size)


def _mv(args: Any, kwargs: Any, result: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    noise = product_noise(args[0], args[1].unsqueeze(-1), result.unsqueeze(-1), recipe, fmt)
    return _mapped(noise, lambda x: x.squeeze(-1))


def _addmv(args: Any, kwargs: Any, result: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    noise = _scaled(_mv(args[1:], {}, args[1] @ args[2], recipe, fmt), abs(kwargs.get("alpha", 1)))
    return _with(noise, C * FORMATS["float32"].unit_roundoff * result.abs())


def _dot(args: Any, kwargs: Any, result: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    noise = product_noise(args[0].unsqueeze(0), args[1].unsqueeze(-1), result.reshape(1, 1), recipe, fmt)
    return _mapped(noise, lambda x: x.reshape(()))


def _convolution(args: Any, kwargs: Any, result: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    """Return the noise of a convolution: of its accumulator and its factors, in unknown order."""
    x, w, _, *geometry = args
    fan_in = math.prod(w.shape[1:]) if not geometry[3] else w.shape[0] // geometry[5] * math.prod(w.shape[2:])
    squares: Tensor = torch.ops.aten.convolution(x.square(), w.square(), None, *geometry).clamp_min(0)
    u = FORMATS[recipe.accumulate].unit_roundoff
    variance = u**2 * (fan_in / 2 * squares + fan_in / 3 * result.square())
    if recipe.factors != "float32" and fmt.name == "float32":
        narrow = FACTORS[recipe.factors]
        of_result = 0.0 if narrow.dtype is None else result.square()
        variance = variance + narrow.unit_roundoff**2 * (2 * squares + of_result)
    if geometry[3] and fmt.precision < FORMATS["float32"].precision:
        # Contributions of neighbours may be kept, and added up, in the format of the result.
        size = torch.ops.aten.convolution(x.abs(), w.abs(), None, *geometry)
        overlapping = math.prod(-(-k // stride) for k, stride in zip(w.shape[2:], geometry[0], strict=True))
        variance = variance + fmt.unit_roundoff**2 * (overlapping + 1) / 3 * size.square()
    return Noise(sigma=C * variance.sqrt() + UNDERFLOW * fan_in)


def _grouped(args: Any, kwargs: Any, result: Tensor, recipe: Recipe, fmt: Format) -> Noise:
    noises = [product_noise(x, w, result[rows], recipe, fmt) for x, w, rows in _groups(*args[:3])]
    sigma = torch.cat([torch.as_tensor(noise.sigma) for noise in noises])
    bounds = [noise.bound for noise in noises]
    bound = torch.cat([b for b in bounds if isinstance(b, Tensor)]) if isinstance(bounds[0], Tensor) else 0.0
    return Noise(sigma=sigma, bound=bound)


def _groups(x: Tensor, weights: Tensor, offsets: Tensor) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Yield the rows `[n, K]` of each group with its weight `[K, M]`, and where they are."""
    start = 0
    for expert, stop in enumerate(offsets.tolist()):
        yield x[start:stop], weights[expert], slice(start, stop)
        start = stop


def _scaled(noise: Noise, factor: float) -> Noise:
    return Noise(sigma=noise.sigma * factor, bound=noise.bound * factor)


def _with(noise: Noise, sigma: Tensor | float) -> Noise:
    return Noise(sigma=noise.sigma + sigma, bound=noise.bound)


def _mapped(noise: Noise, change: Callable[[Tensor], Tensor]) -> Noise:
    sigma, bound = (change(x) if isinstance(x, Tensor) else x for x in (noise.sigma, noise.bound))
    return Noise(sigma=sigma, bound=bound)


PRODUCTS: dict[str, Callable[[Any, Any, Tensor, Recipe, Format], Noise]] = {
    "_grouped_mm": _grouped,
    "addmm": _addmm,
    "addmv": _addmv,
    "baddbmm": _addmm,
    "bmm": _matmul,
    "convolution": _convolution,
    "dot": _dot,
    "mm": _matmul,
    "mv": _mv,
}
"""Operators that are sums of products, by name."""
