"""What an operator gives when it computes as a looser recipe allows, by a software model.

Only arithmetic inside of an operator is simulated here: rounding its result is the caller's. Sums are taken
one term after the other; a device may have another order, so that single values need not agree with its.

Shape legend: * = any shape.
"""

from typing import Any

import torch
from torch import Tensor

from validator.checks.products import PRODUCTS, simulated_product
from validator.numerics.formats import FORMATS, Format
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["simulated"]


def simulated(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], recipe: Recipe, fmt: Format
) -> Tensor | None:
    """Return an operator's result under a recipe, before it is rounded.

    Args:
        name: from `operator_name`.
        args: the operator's arguments, floating tensors in float64.
        kwargs: its keyword arguments.
        recipe: what is rounded.
        fmt: storage format of the operands.

    Returns:
        `[*]` float64, or None where the recipe asks for nothing that could be simulated in this operator.
    """
    if name in PRODUCTS:
        return simulated_product(name, args, kwargs, recipe, fmt)
    sums = FORMATS[recipe.sums]
    if sums.precision >= 24:
        return None
    match name:
        case "_softmax":
            return _softmax(args[0], args[1], FORMATS[recipe.operators], sums)
        case "sum" if args[0].is_floating_point():  # numbers of tokens are summed exactly
            return _summed(args, sums)
        case "mean":
            total = _summed(args, sums)
            average: Tensor = total * (total.numel() / args[0].numel())
            return average
    return None


def _softmax(scores: Tensor, dim: int, fmt: Format, sums: Format) -> Tensor:
    largest = scores.amax(dim, keepdim=True)
    numerators = round_nearest(torch.exp(round_nearest(scores - largest, fmt)), fmt)
    return numerators / _one_by_one(numerators, dim, sums)


def _summed(args: tuple[Any, ...], sums: Format) -> Tensor:
    x: Tensor = args[0]
    dims = args[1] if len(args) > 1 and args[1] else list(range(x.dim()))
    keepdim = len(args) > 2 and bool(args[2])
    wanted = x.sum(dims, keepdim=keepdim).shape
    dims = sorted(d % x.dim() for d in dims)
    rows = x.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
    return _one_by_one(rows, -1, sums).reshape(wanted)


def _one_by_one(values: Tensor, dim: int, fmt: Format) -> Tensor:
    """Sum along a dim, which is kept, with every partial sum rounded."""
    total = torch.zeros_like(values.narrow(dim, 0, 1))
    for term in values.split(1, dim):
        total = round_nearest(total + term, fmt)
    return total
