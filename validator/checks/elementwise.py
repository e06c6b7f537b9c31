"""The noise of operators that compute each element by itself.

Shape legend: * = the result's shape.
"""

import math
from typing import Any

import torch
from torch import Tensor

from validator.checks.how import How, Row
from validator.numerics.bands import FLUSH, C, Noise
from validator.numerics.formats import FORMATS
from validator.numerics.operator_bands import gelu_noise, silu_noise
from validator.numerics.rounding import round_nearest

__all__ = ["ELEMENTWISE"]

_FUNCTIONS = {
    "abs": 3.0,  # of a complex number
    "acos": 4.0,
    "acosh": 4.0,
    "angle": 4.0,
    "asin": 4.0,
    "asinh": 4.0,
    "atan": 3.0,
    "atan2": 4.0,
    "atanh": 4.0,
    "cos": 3.0,
    "cosh": 3.0,
    "deg2rad": 2.0,
    "erfc": 4.0,
    "exp": 3.0,
    "exp2": 3.0,
    "expm1": 3.0,
    "hypot": 3.0,
    "leaky_relu": 2.0,  # its slope is a number that may be rounded
    "log": 3.0,
    "log10": 3.0,
    "log1p": 3.0,
    "log2": 3.0,
    "polar": 3.0,
    "rad2deg": 2.0,
    "reciprocal": 2.0,
    "rsqrt": 3.0,
    "sigmoid": 4.0,
    "sin": 3.0,
    "sinh": 3.0,
    "special_entr": 4.0,
    "sqrt": 2.0,
    "tan": 4.0,
    "tanh": 4.0,
}
"""Multiples of `u |y|` that float32 kernels of these functions are good to, but for underflow on the way."""

_GATED = frozenset(
    (
        "celu",
        "elu",
        "hardsigmoid",
        "hardswish",
        "log_sigmoid_forward",
        "mish",
        "selu",
        "softsign",
    )
)
"""Activations in which a term as large as the input cancels: good to `u (3|y| + 2|x|)`, as GELU is."""


def _function(multiple: float) -> Row:
    def row(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
        first: Tensor = result[0] if isinstance(result, tuple | list) else result
        return Noise(sigma=C * how.u * multiple * first.abs(), bound=FLUSH)

    return row


def _gate(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
    first: Tensor = result[0] if isinstance(result, tuple | list) else result
    return Noise(sigma=C * how.u * (3 * first.abs() + 2 * args[0].abs()))


def _sum_of_two(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `a + alpha b`: of what is scaled first, and of numbers that are rounded."""
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    if alpha == 1:
        return Noise(bound=_moves(args[0], how) + _moves(args[1], how))
    second = torch.as_tensor(args[1], dtype=torch.float64).abs()
    bound = _moves(args[0], how) + abs(alpha) * _moves(args[1], how) + _moves(alpha, how) * second
    # The product may be rounded to the result's format.
    bound = bound + how.fmt.unit_roundoff * abs(alpha) * second
    return Noise(sigma=C * how.u * abs(alpha) * second, bound=bound)


def _reversed_difference(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    return _sum_of_two((args[1], args[0], *args[2:]), kwargs, result, how)


def _product_of_two(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of a product: none, but of a number that is rounded."""
    relative = sum(_moves(x, how) / abs(x) for x in args[:2] if isinstance(x, float) and x)
    return Noise(bound=relative * result.abs() if relative else 0.0)


def _quotient(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of a quotient, which kernels may compute as a product with the reciprocal.

    Then even a quotient that the format holds exactly is off. Reciprocals of powers of two are exact.
    """
    divisor = args[1]
    is_power = not isinstance(divisor, Tensor) and abs(math.frexp(divisor)[0]) in (0.0, 0.5)
    sigma = 0.0 if is_power else C * how.u * 2 * result.abs()
    return Noise(sigma=sigma, bound=_product_of_two(args, kwargs, result, how).bound)


def _moves(value: Any, how: How) -> float:
    """Return how far rounding moves a number of the code, which torch holds in float64.

    Kernels hold it in float32, or in the format of the operator's result.
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return 0.0
    exact = torch.tensor(value, dtype=torch.float64)
    narrow = how.fmt if how.fmt.precision < FORMATS["float32"].precision else FORMATS["float32"]
    return max(abs(float(round_nearest(exact, fmt)) - value) for fmt in (narrow, FORMATS["float32"]))


_STEPWISE = (3, -2)
"""Exponents for which torch multiplies, and rounds on the way."""


def _power(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `exp(e log(x))`, and of a base or exponent that is rounded."""
    base, exponent = args
    logarithm = result.abs().log().abs().nan_to_num(posinf=0.0)
    sigma = C * how.u * (3 + logarithm) * result.abs()
    relative = torch.zeros_like(result)
    if isinstance(base, float):
        relative += exponent.abs() * _moves(base, how) / abs(base)
    if isinstance(exponent, float):
        relative += logarithm * _moves(exponent, how) / abs(exponent)
    if not isinstance(exponent, Tensor) and exponent in _STEPWISE:
        relative += how.fmt.unit_roundoff
    return Noise(sigma=sigma, bound=relative.expm1() * result.abs() + FLUSH)


def _remainder(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of what is left of a division: where nothing is, rounding may leave the divisor."""
    x, divisor = (torch.as_tensor(v, dtype=torch.float64).abs() for v in args[:2])
    if not any(_moves(v, how) for v in args[:2]):
        return Noise()
    moves = _moves(args[0], how) + x / divisor * _moves(args[1], how) + how.fmt.unit_roundoff * divisor
    left = result.abs()
    is_near = torch.minimum(left, divisor - left) <= 2 * moves
    return Noise(bound=moves + divisor * is_near)


def _x_log(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `x log(y)`, whose logarithm may be rounded to the result's format."""
    return Noise(sigma=C * how.u * 4 * result.abs(), bound=how.fmt.unit_roundoff * result.abs() + FLUSH)


def _erf(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of an error function.

    Source:
        Abramowitz and Stegun, 7.1.26, which vectorised kernels use: `|error| <= 1.5e-7`, which is 2.5 u.
    """
    return Noise(sigma=C * how.u * 3 * result.abs(), bound=3 * how.u)


def _interpolated(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    start, end, weight = args
    return Noise(sigma=C * how.u * (3 * (weight * (end - start)).abs() + result.abs()))


def _with_product(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `self + value * a * b`, and of `self + value * a / b`."""
    return Noise(sigma=C * how.u * 3 * (result - args[0]).abs())


def _softplus(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    x, beta = args[0], args[1] if len(args) > 1 else 1
    scaled = 0.0 if beta == 1 else (beta * x).abs()
    return Noise(sigma=C * how.u * result.abs() * (4 + scaled), bound=FLUSH)


def _log_of_sum(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `logaddexp`: of `log1p(exp(-|x - y|))`, which is at most 1, and of the sum."""
    return Noise(sigma=C * how.u * (result.abs().nan_to_num(posinf=0.0) + 3))


def _logit(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `log(x / (1 - x))`, of a quotient that is good to 2 u."""
    return Noise(sigma=C * how.u * (3 * result.abs() + 2))


def _sinc(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `sin(pi x) / (pi x)`, whose angle is rounded."""
    return Noise(sigma=C * how.u * (3 * result.abs() + 2))


def _silu(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    return silu_noise(args[0], u=how.u)


def _glu(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `a sigmoid(b)`, of which `silu` is the case of `a = b`."""
    a, b = args[0].chunk(2, args[1] if len(args) > 1 else -1)
    return Noise(sigma=C * how.u * result.abs() * (4 + b.abs()), bound=a.abs() * FLUSH)


def _gelu(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    return gelu_noise(args[0], result, u=how.u)


ELEMENTWISE: dict[str, Row] = {
    **{name: _function(multiple) for name, multiple in _FUNCTIONS.items()},
    **dict.fromkeys(_GATED, _gate),
    "add": _sum_of_two,
    "addcdiv": _with_product,
    "addcmul": _with_product,
    "div": _quotient,
    "erf": _erf,
    "fmod": _remainder,
    "gelu": _gelu,
    "glu": _glu,
    "lerp": _interpolated,
    "logaddexp": _log_of_sum,
    "logaddexp2": _log_of_sum,
    "logit": _logit,
    "mul": _product_of_two,
    "pow": _power,
    "remainder": _remainder,
    "rsub": _reversed_difference,
    "silu": _silu,
    "sinc": _sinc,
    "softplus": _softplus,
    "sub": _sum_of_two,
    "xlogy": _x_log,
}
