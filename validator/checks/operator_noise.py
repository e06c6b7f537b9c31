"""The noise inside operators: what float32 arithmetic adds to a result before it is rounded.

Rows of NUMERICS section 4 for the operators that have one. An operator that rounds and is in none of
these tables is not known: nothing is said of what comes after it.

Shape legend: * = the result's shape.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validator.checks.operators import KERNELS
from validator.numerics.bands import U32, UNDERFLOW, C, matmul_sigma, softmax_sigma

__all__ = ["is_known", "operator_sigma"]

_ROUNDED = frozenset(
    (
        "__rshift__",
        "_conj_physical",
        "abs",
        "add",
        "angle",
        "ceil",
        "conj",
        "div",
        "floor",
        "fmod",
        "frac",
        "hardtanh",
        "imag",
        "leaky_relu",
        "mul",
        "real",
        "remainder",
        "relu6",
        "round",
        "rsub",
        "sign",
        "sqrt",
        "square",
        "sub",
        "threshold",
        "trunc",
        "view_as_complex",
        "view_as_real",
    )
)
"""Operators that round once, as IEEE arithmetic does: they add no noise of their own."""

_ELEMENTWISE = {
    "acos": 4.0,
    "addcdiv": 3.0,
    "addcmul": 3.0,
    "asin": 4.0,
    "atan": 3.0,
    "atan2": 4.0,
    "cos": 3.0,
    "cosh": 3.0,
    "erf": 3.0,
    "exp": 3.0,
    "exp2": 3.0,
    "expm1": 3.0,
    "lerp": 3.0,
    "log": 3.0,
    "log10": 3.0,
    "log1p": 3.0,
    "log2": 3.0,
    "polar": 3.0,
    "pow": 3.0,
    "reciprocal": 2.0,
    "rsqrt": 3.0,
    "sigmoid": 4.0,
    "sin": 3.0,
    "sinh": 3.0,
    "softplus": 4.0,
    "tan": 4.0,
    "tanh": 4.0,
    "_weight_norm_interface": 4.0,
}
"""Multiples of `u |y|` that float32 kernels of these functions are good to."""

_GATED = frozenset(
    (
        "celu",
        "elu",
        "glu",
        "hardsigmoid",
        "hardswish",
        "log_sigmoid_forward",
        "mish",
        "prelu",
        "selu",
        "softsign",
    )
)
"""Activations in which a term as large as the input cancels: good to `u (3|y| + 2|x|)`, as GELU is."""


def is_known(name: str) -> bool:
    """Tell whether `operator_sigma` knows what an operator that rounds does inside."""
    return name in _SIGMA or name in _ELEMENTWISE or name in _GATED or name in _ROUNDED


def operator_sigma(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Tensor | None:
    """Return the standard deviation of float32 arithmetic inside an operator, before its result is rounded.

    Args:
        name: from `operator_name`.
        args: the operator's arguments, floating tensors in float64.
        kwargs: its keyword arguments.
        result: what it returned in float64.

    Returns:
        `[*]` float64 in the result's shape, or None where the operator is correctly rounded or not known.

    Source:
        NUMERICS section 4.
    """
    first = result[0] if isinstance(result, tuple | list) else result
    if name in _SIGMA and not (isinstance(first, Tensor) and first.is_complex()):
        return _SIGMA[name](args, kwargs, result)
    if not isinstance(first, Tensor):
        return None
    if first.is_complex():
        # Each part is a sum of products of parts; sqrt(2) since complex noise shares its power between them.
        return C * U32 * 3 * math.sqrt(2) * first.abs()
    if name in _ELEMENTWISE:
        return C * U32 * _ELEMENTWISE[name] * first.abs()
    if name in _GATED:
        x: Tensor = args[0]
        size: Tensor | float = x.abs() if x.shape == first.shape else float(x.abs().max())
        return C * U32 * (3 * first.abs() + 2 * size)
    return None


def _matmul(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    return matmul_sigma(args[0], args[1], result)


def _addmm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    product = args[1] @ args[2]
    sigma: Tensor = abs(alpha) * matmul_sigma(args[1], args[2], product)
    # The bias, where it is scaled, is rounded once more.
    if beta == 1 and alpha == 1:
        return sigma
    scaled: Tensor = sigma + C * U32 * (result.abs() + (alpha * product).abs())
    return scaled


def _mv(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    return matmul_sigma(args[0], args[1].unsqueeze(-1), result.unsqueeze(-1)).squeeze(-1)


def _addmv(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    alpha: float = abs(kwargs.get("alpha", 1))
    return alpha * _mv(args[1:], {}, args[1] @ args[2]) + C * U32 * result.abs()


def _dot(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    return matmul_sigma(args[0].unsqueeze(0), args[1].unsqueeze(-1), result.reshape(1, 1)).reshape(())


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    x, w, _, *geometry = args
    fan_in = math.prod(w.shape[1:]) if not geometry[3] else w.shape[0] // geometry[5] * math.prod(w.shape[2:])
    squares: Tensor = torch.ops.aten.convolution(x.square(), w.square(), None, *geometry)
    underflow: float = UNDERFLOW * fan_in
    return _summed(squares, fan_in, result) + underflow


def _summed(squares: Tensor, terms: Tensor | float, result: Tensor) -> Tensor:
    """Return sigma of a float32 sum of `terms` terms in unknown order, from the sum of their squares."""
    variance: Tensor = terms / 2 * squares + terms / 3 * result.square()
    return C * U32 * variance.clamp_min(0).sqrt()


def _scattered(name: str) -> Callable[[tuple[Any, ...], dict[str, Any], Any], Tensor]:
    """Return the row of an operator that adds values up at indices: it runs again on squares and ones."""

    def row(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
        func = getattr(torch.ops.aten, name)

        def rerun(change: Callable[[Tensor], Tensor]) -> Tensor:
            changed: Tensor = func(*[change(x) if _is_float(x) else x for x in args], **kwargs)
            return changed

        return _summed(rerun(torch.square), rerun(torch.ones_like), result)

    return row


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _cumsum(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    x, dim = args[0], args[1]
    terms = torch.ones_like(x).cumsum(dim)
    prefixes = result.square().cumsum(dim)
    return _summed(x.square().cumsum(dim), terms, result) + C * U32 * prefixes.sqrt()


def _pooled(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    """Return a bound for averages and interpolations: no term is larger than the largest input."""
    x: Tensor = args[0]
    terms = max(x.numel() // max(result.numel(), 1), 1) + 64
    return C * U32 * math.sqrt(terms) * x.abs().max().expand(result.shape)


def _vector_norm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    n = max(args[0].numel() // max(result.numel(), 1), 1)
    return C * U32 * math.sqrt(n / 12 + 3) * result.abs()


def _variance(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Tensor:
    first: Tensor = result[0] if isinstance(result, tuple) else result
    n = max(args[0].numel() // max(first.numel(), 1), 1)
    return C * U32 * math.sqrt(n / 3 + 3) * first.abs()


def _group_norm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Tensor:
    x, weight = args[0], args[1]
    y = result[0]
    n = x.numel() // max(result[1].numel(), 1)
    scale = float(weight.abs().max()) if weight is not None else 1.0
    rstd = float(result[2].abs().max()) if result[2].numel() else 1.0
    shift = scale * rstd * (x.abs() + math.sqrt(n / 3 + 1) * x.abs().mean())
    return C * U32 * torch.sqrt((y.abs() * math.sqrt(n / 12 + 3)).square() + shift.square())


def _sum(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    x: Tensor = args[0]
    n = max(x.numel() // max(result.numel(), 1), 1)
    dims = args[1] if len(args) > 1 and args[1] is not None else list(range(x.dim()))
    keepdim = len(args) > 2 and bool(args[2])
    squares: Tensor = x.square().sum(dims, keepdim=keepdim) if dims else x.square().sum()
    variance: Tensor = n / 2 * squares.reshape(result.shape) + n / 3 * result.square()
    return C * U32 * variance.sqrt()


def _mean(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    n: int = max(args[0].numel() // max(result.numel(), 1), 1)
    return _sum(args, kwargs, result * n) / n


def _softmax(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    return softmax_sigma(args[0], result, dim=args[1])


def _log_softmax(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    x: Tensor = args[0]
    n = x.shape[args[1]]
    largest: Tensor = x.amax(args[1], keepdim=True).abs()
    return C * U32 * (result.abs() + largest + math.sqrt(n / 12) + 3)


def _silu(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    # Below -88 `exp(-x)` overflows, and the result is 0.
    x: Tensor = args[0]
    return C * U32 * result.abs() * (3 + x.abs()) + x.abs() * 2.0**-126


def _gelu(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    x: Tensor = args[0]
    return C * U32 * (3 * result.abs() + 2 * x.abs())


def _layer_norm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Tensor:
    x, shape, weight = args[0], args[1], args[2]
    y, mean, rstd = result
    n = math.prod(shape)
    w = weight if weight is not None else torch.ones_like(x)
    scaled = ((x - mean) * rstd * w).abs()
    dims = list(range(-len(shape), 0))
    shift = w.abs() * rstd * (x.abs() + math.sqrt(n / 3 + 1) * x.abs().mean(dims, keepdim=True))
    return C * U32 * torch.sqrt((scaled * math.sqrt(n / 12 + 3)).square() + shift.square() + y.square())


def _grouped(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    x, weights, *rest = args
    squares = KERNELS["_grouped_mm"](x.square(), weights.square(), *rest[:1])
    terms: int = x.shape[-1]
    return _summed(squares, terms, result) + UNDERFLOW * terms


_SIGMA: dict[str, Callable[[tuple[Any, ...], dict[str, Any], Any], Tensor]] = {
    "_adaptive_avg_pool2d": _pooled,
    "_adaptive_avg_pool3d": _pooled,
    "_log_softmax": _log_softmax,
    "_native_batch_norm_legit_no_training": _group_norm,
    "_softmax": _softmax,
    "adaptive_avg_pool1d": _pooled,
    "_grouped_mm": _grouped,
    "addmm": _addmm,
    "addmv": _addmv,
    "avg_pool1d": _pooled,
    "avg_pool2d": _pooled,
    "avg_pool3d": _pooled,
    "baddbmm": _addmm,
    "bmm": _matmul,
    "convolution": _convolution,
    "cumsum": _cumsum,
    "dot": _dot,
    "gelu": _gelu,
    "index_add": _scattered("index_add"),
    "index_put": _scattered("index_put"),
    "linalg_vector_norm": _vector_norm,
    "mean": _mean,
    "mm": _matmul,
    "mv": _mv,
    "native_batch_norm": _group_norm,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "scatter_add": _scattered("scatter_add"),
    "silu": _silu,
    "std": _variance,
    "sum": _sum,
    "upsample_bilinear2d": _pooled,
    "upsample_linear1d": _pooled,
    "upsample_nearest1d": _pooled,
    "upsample_nearest2d": _pooled,
    "var": _variance,
    "var_mean": _variance,
}
