"""The noise inside operators: what arithmetic under a recipe adds to a result before it is rounded.

Rows of NUMERICS section 4 for the operators that have one. An operator that rounds and is in none of
these tables is not known: nothing is said of what comes after it.

Shape legend: * = the result's shape.
"""

import math
from typing import Any

import torch
from torch import Tensor

from validator.checks.elementwise import ELEMENTWISE
from validator.checks.how import How, Row
from validator.checks.products import PRODUCTS, noise_of_product
from validator.checks.reductions import REDUCTIONS
from validator.checks.resampling import RESAMPLING
from validator.numerics.bands import C, Noise, softmax_sigma
from validator.numerics.formats import FORMATS
from validator.numerics.operator_bands import layer_norm_noise, sum_noise

__all__ = ["SUMS", "is_known", "operator_noise"]

_ROUNDED = frozenset(
    (
        "__rshift__",
        "_conj_physical",
        "_prelu_kernel",
        "ceil",
        "conj",
        "copysign",
        "floor",
        "frac",
        "hardtanh",
        "heaviside",
        "imag",
        "ldexp",
        "real",
        "relu6",
        "round",
        "sign",
        "softshrink",
        "square",
        "threshold",
        "trunc",
        "view_as_complex",
        "view_as_real",
    )
)
"""Operators that round once, as IEEE arithmetic does: they add no noise of their own."""


def is_known(name: str) -> bool:
    """Tell whether `operator_noise` knows what an operator that rounds does inside."""
    return name in PRODUCTS or name in _ROWS or name in _ROUNDED


def operator_noise(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, how: How
) -> Noise | None:
    """Return what arithmetic inside an operator may do to its result, before that is rounded.

    Args:
        name: from `operator_name`.
        args: the operator's arguments, floating tensors in float64.
        kwargs: its keyword arguments.
        result: what it returned in float64.
        how: what arithmetic it computes with.

    Returns:
        Sigma and bound in the result's shape, or None where the operator is correctly rounded or not known.

    Source:
        NUMERICS section 4.
    """
    first = result[0] if isinstance(result, tuple | list) else result
    if not isinstance(first, Tensor):
        return None
    if name.startswith("_fft"):
        return _ROWS[name](args, kwargs, result, how)
    if first.is_complex():
        # Each part is a sum of products of parts; sqrt(2) since complex noise shares its power between them.
        return Noise(sigma=C * how.u * 3 * math.sqrt(2) * first.abs())
    if name in PRODUCTS:
        return noise_of_product(name, args, kwargs, first, how.recipe, how.fmt)
    if name in _ROWS:
        noise = _ROWS[name](args, kwargs, result, how)
        if not any(isinstance(x, Tensor) or x for x in (noise.sigma, noise.bound)):
            return None
        sigma, bound = (torch.as_tensor(x, dtype=torch.float64) for x in (noise.sigma, noise.bound))
        return Noise(sigma=sigma.expand(first.shape), bound=bound.expand(first.shape))
    return None


def _weight_norm(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
    n = args[0].numel() // max(args[1].numel(), 1)
    return Noise(sigma=C * how.u_of_sums * math.sqrt(n / 12 + 9) * result[0].abs())


def _group_norm(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
    x, weight, bias, batch, _, _, groups, eps = args
    grouped = x.reshape(batch, groups, x.shape[1] // groups, -1)
    w, b = (None if p is None else p.reshape(1, groups, -1, 1) for p in (weight, bias))
    noise = layer_norm_noise(grouped, w, b, dims=2, eps=eps, u=how.u_of_sums)
    return Noise(sigma=torch.as_tensor(noise.sigma).reshape(x.shape))


def _batch_norm(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
    """Return the noise of a batch norm: a layer norm over all but the channels, or an affine function."""
    x, weight, bias, mean, variance, *rest = args
    shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
    if len(rest) > 2 and rest[0]:
        channels = x.transpose(0, 1)
        w, b = (None if p is None else p.unsqueeze(-1) for p in (weight, bias))
        noise = layer_norm_noise(channels.flatten(1), w, b, eps=rest[2], u=how.u_of_sums)
        sigma = torch.as_tensor(noise.sigma).reshape(channels.shape).transpose(0, 1)
        # Mean and deviation may be kept in the input's format.
        mean, scale = (s.reshape(shape) for s in (result[1], result[2] * (1.0 if weight is None else weight)))
        u = how.fmt.unit_roundoff if how.fmt.precision < FORMATS["float32"].precision else 0.0
        return Noise(sigma=sigma, bound=u * scale.abs() * (mean.abs() + 2 * (x - mean).abs()))
    scale = torch.rsqrt(variance + rest[-1]) * (1.0 if weight is None else weight)
    scale, mean = scale.reshape(shape), mean.reshape(shape)
    shift = 0.0 if bias is None else bias.reshape(shape).abs()
    size = 4 * ((x * scale).abs() + (mean * scale).abs()) + shift
    return Noise(sigma=C * how.u * size)


def _layer_norm(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
    x, shape, weight, bias, eps = args
    return layer_norm_noise(x, weight, bias, dims=len(shape), eps=eps, u=how.u_of_sums)


def _softmax(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    sigma = softmax_sigma(args[0], result, dim=args[1], u=how.u)
    if how.sums.precision >= 24:
        return Noise(sigma=sigma)
    # The sum of exponentials, one after the other, stands below every probability.
    n = args[0].shape[args[1]]
    of_sum = sum_noise(result.square(), result, n, fmt=how.sums)
    return Noise(sigma=torch.hypot(sigma, torch.as_tensor(of_sum.sigma)), bound=of_sum.bound)


def _log_softmax(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    x: Tensor = args[0]
    n = x.shape[args[1]]
    top = x.amax(args[1], keepdim=True)
    sigma = C * how.u * (result.abs() + top.abs() + 3) + C * how.u_of_sums * math.sqrt(n / 12)
    if how.fmt.precision >= FORMATS["float32"].precision:
        return Noise(sigma=sigma)
    # What is subtracted, the logarithm of the sum of exponentials, may be kept in the result's format.
    logarithm = torch.logsumexp(x, args[1], keepdim=True).abs()
    return Noise(sigma=sigma, bound=how.fmt.unit_roundoff * (logarithm + result.abs()))


_ROWS: dict[str, Row] = {
    "_log_softmax": _log_softmax,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_softmax": _softmax,
    "_weight_norm_interface": _weight_norm,
    "native_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    **ELEMENTWISE,
    **REDUCTIONS,
    **RESAMPLING,
}

SUMS = frozenset(_ROWS) - frozenset(ELEMENTWISE) - frozenset(RESAMPLING)
"""Operators that sum up, other than matrix products."""
