"""The noise of operators that take many values to few: sums at indices, variances, norms, scans, distances.

Shape legend: * = the result's shape.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from validator.checks.how import How, Row
from validator.numerics.bands import UNDERFLOW, C, Noise
from validator.numerics.formats import FORMATS
from validator.numerics.operator_bands import sum_noise

__all__ = ["REDUCTIONS"]


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an operator by name, defaults included."""
    named = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    return named | dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(kwargs)


def _terms(x: Tensor, result: Tensor) -> int:
    return max(x.numel() // max(result.numel(), 1), 1)


def _scattered(name: str) -> Row:
    """Return the row of an operator that adds values up: it runs again on squares and on ones."""

    def row(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
        func = getattr(torch.ops.aten, name)

        def rerun(change: Callable[[Tensor], Tensor]) -> Tensor:
            changed: Tensor = func(*[change(x) if _is_float(x) else x for x in args], **kwargs)
            return changed

        return _added_in_place(rerun(torch.square), result, rerun(torch.ones_like), how)

    return row


def _added_in_place(squares: Tensor, total: Tensor, terms: Tensor, how: How) -> Noise:
    """Return the noise of a sum whose terms are added one after the other to what is stored.

    Each addition but the last rounds a partial sum, no larger than the terms or the total, to that format.
    """
    noise = sum_noise(squares, total, terms, fmt=how.sums)
    partial = (terms - 1).clamp_min(0) * (squares + total.square())
    return Noise(sigma=noise.sigma + C * _u_stored(how) * partial.sqrt(), bound=noise.bound)


def _u_stored(how: How) -> float:
    """Return the unit roundoff of a 16-bit storage format, or 0: of a wider one rows know already."""
    return how.fmt.unit_roundoff if how.fmt.precision < FORMATS["float32"].precision else 0.0


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _reduced_at_indices(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `scatter_reduce` and `index_reduce`, whose fifth argument says how they reduce."""
    x, dim, index, source, reduce = args
    if reduce in ("amax", "amin"):
        return Noise()
    if index.dim() < source.dim():
        index = index.reshape([-1 if i == dim % x.dim() else 1 for i in range(x.dim())]).expand_as(source)
    own = 1.0 if kwargs.get("include_self", True) else 0.0

    def total(start: Tensor, values: Tensor) -> Tensor:
        return (own * start).scatter_add(dim, index, values)

    terms = total(torch.ones_like(x), torch.ones_like(source)).clamp_min(1)
    if reduce == "prod":
        return Noise(sigma=C * how.u * terms.sqrt() * result.abs())
    squares = total(x.square(), source.square())
    if reduce == "sum":
        return _added_in_place(squares, result, terms, how)
    noise = _added_in_place(squares, result * terms, terms, how)
    u = max(how.u, _u_stored(how))
    return Noise(sigma=noise.sigma / terms + C * u * result.abs(), bound=noise.bound / terms)


_SUM, _MEAN, _MAX = range(3)
"""Modes of `embedding_bag`."""


def _embedding_bag(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
    func = torch.ops.aten._embedding_bag_forward_only.default
    named = _named(func, args, kwargs)
    mode, weights = named["mode"], named["per_sample_weights"]
    if mode == _MAX:
        return Noise()
    table, own = named["weight"], result[0]

    def summed(values: Tensor, weights: Tensor | None) -> Tensor:
        made: Tensor = func(**named | {"weight": values, "per_sample_weights": weights, "mode": _SUM})[0]
        return made

    terms = summed(torch.ones_like(table), None).clamp_min(1)
    squares = summed(table.square(), None if weights is None else weights.square())
    if mode == _SUM:
        noise = sum_noise(squares, own, terms, fmt=how.sums)
        products = 0.0 if weights is None else C * how.u * squares.sqrt()
        return Noise(sigma=noise.sigma + products, bound=noise.bound)
    noise = sum_noise(squares, own * terms, terms, fmt=how.sums)
    return Noise(sigma=noise.sigma / terms + C * how.u * own.abs(), bound=noise.bound / terms)


def _sum(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    x: Tensor = args[0].nan_to_num(nan=0.0)
    dims = args[1] if len(args) > 1 and args[1] else list(range(x.dim()))
    keepdim = len(args) > 2 and bool(args[2])
    squares: Tensor = x.square().sum(dims, keepdim=keepdim) if dims else x.square()
    return sum_noise(squares.reshape(result.shape), result, _terms(x, result), fmt=how.sums)


def _mean(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    n = _terms(args[0], result)
    noise = _sum(args, kwargs, result * n, how)
    return Noise(sigma=noise.sigma / n + C * how.u * result.abs(), bound=noise.bound / n)


def _deviation(args: Any, kwargs: Any, result: Any, how: How) -> Tensor:
    """Return sigma of a standard deviation: of the squares' sum, and of the mean that was subtracted.

    Source:
        Chan, Golub and LeVeque (1983): the relative error of the variance grows as its condition number,
        `|mean| / deviation`, in the updating algorithm that torch has as in the one with two passes.
    """
    x: Tensor = args[0]
    named = dict(zip(("dim", "correction"), args[1:], strict=False)) | kwargs
    dims = named.get("dim") or list(range(x.dim()))
    n = _terms(x, result)
    keepdim = bool(named.get("keepdim", False))
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=keepdim)
    relative = math.sqrt(n / 12 + 3)
    size = relative * variance.sqrt() + math.sqrt(n / 3 + 1) * mean.abs()
    return (C * how.u_of_sums * size + _root_error(variance.sqrt(), UNDERFLOW)).reshape(result.shape)


def _root_error(root: Tensor, error: float, p: float = 2.0) -> Tensor:
    """Return how far `root` moves at most where its p-th power is off by `error`, near zero too."""
    return root - (root**p - error).clamp_min(0) ** (1 / p)


def _std(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    return Noise(sigma=_deviation(args, kwargs, result, how))


def _var(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    of_root = _deviation(args, kwargs, result, how)
    # Near zero the square of the root's error counts; 10 is no less than any lambda.
    return Noise(sigma=2 * result.sqrt() * of_root + 10 * of_root.square() + UNDERFLOW)


def _norm(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of a p-norm: `1/p` of that of the sum of powers, and of powers and root themselves."""
    p = float(args[1]) if len(args) > 1 and args[1] is not None else 2.0
    if p in (0.0, math.inf, -math.inf):
        return Noise()
    n = _terms(args[0], result)
    powers = 0.0 if p in (1.0, 2.0) else 18.0
    sigma = C * how.u_of_sums * math.sqrt(n / (3 * p * p) + 3 + powers) * result.abs()
    return Noise(sigma=sigma, bound=_root_error(result, 2 * UNDERFLOW * n, p) if p > 1 else 0.0)


def _distances(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `cdist`: by differences, or as `|a|^2 + |b|^2 - 2 a b` where that may be used."""
    a, b, p = args[:3]
    n = a.shape[-1]
    powers = 0 if p in (1, 2) else 18
    sigma = C * how.u_of_sums * math.sqrt(n / 3 + 6 + powers) * result
    no_products = 2
    if p != 2 or (len(args) > 3 and args[3] == no_products):
        return Noise(sigma=sigma)
    squares = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
    error = C * how.u_of_sums * math.sqrt(n / 2 + 3) * squares
    return Noise(sigma=sigma + error / (result + error.sqrt()).clamp_min(2.0**-149))


def _logsumexp(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of `max + log(sum exp(x - max))`.

    Source:
        Blanchard, Higham and Higham (2021), as of the softmax in NUMERICS section 4.
    """
    x, dims = args[0], args[1] if isinstance(args[1], list | tuple) else [args[1]]
    largest = x.amax(dims, keepdim=True)
    y = torch.logsumexp(x, dims, keepdim=True)
    p = torch.exp(x - y).nan_to_num(nan=0.0)
    terms = 3 * (1 + (x - largest).abs().masked_fill(p == 0, 0.0))
    variance = (p * terms).square().sum(dims, keepdim=True) + _terms(x, result) / 12
    variance = variance + (3 * (y - largest)).square().nan_to_num(nan=0.0)
    sigma = (C * how.u_of_sums * variance.sqrt()).reshape(result.shape)
    return Noise(sigma=sigma + C * how.u * result.abs())


def _cumsum(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    x, dim = args[0], args[1]
    noise = sum_noise(x.square().cumsum(dim), result, torch.ones_like(x).cumsum(dim), fmt=how.sums)
    prefixes = C * how.sums.unit_roundoff * result.square().cumsum(dim).sqrt()
    return Noise(sigma=noise.sigma + prefixes, bound=noise.bound)


def _logcumsumexp(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of a running `logaddexp`, each step of which passes on at most all of its error."""
    steps = (result.abs().nan_to_num(posinf=0.0) + 3).square().cumsum(args[1])
    return Noise(sigma=C * how.u_of_sums * steps.sqrt())


def _prod(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    # It may be kept in the input's format on the way.
    u = max(how.u, _u_stored(how))
    return Noise(sigma=C * u * math.sqrt(_terms(args[0], result)) * result.abs() + UNDERFLOW)


def _cumprod(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    terms = torch.ones_like(result).cumsum(args[1])
    return Noise(sigma=C * how.u * terms.sqrt() * result.abs() + UNDERFLOW)


def _mse(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    n = _terms(args[0], result)
    # The squares may be stored before they are summed.
    relative = how.u_of_sums * math.sqrt(n / 3 + 9) + 2 * _u_stored(how)
    return Noise(sigma=C * relative * result.abs() + UNDERFLOW)


def _nll(args: Any, kwargs: Any, result: Any, how: How) -> Noise:
    """Return the noise of a negative log-likelihood: of a sum of values picked by class, and a division."""
    x, target, weight, reduction, ignored = args
    loss, total_weight = result
    if loss.dim():
        return Noise(sigma=C * how.u * loss.abs())
    classes = target.masked_fill(target == ignored, 0)
    picked = x.gather(-1, classes.unsqueeze(-1)).squeeze(-1) * (1.0 if weight is None else weight[classes])
    picked = picked.masked_fill(target == ignored, 0.0)
    terms = torch.tensor(float(target.numel()), dtype=torch.float64)
    noise = _added_in_place(picked.square().sum(), picked.sum(), terms, how)
    divisor: Tensor | float = total_weight if reduction == _MEAN else 1.0
    return Noise(sigma=noise.sigma / divisor + C * how.u * loss.abs(), bound=noise.bound / divisor)


def _inner(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    terms = args[0] * args[1]
    return sum_noise(terms.square().sum(), result, terms.numel(), fmt=how.sums)


def _trilinear(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of a sum of products of three."""

    def rerun(change: Callable[[Tensor], Tensor]) -> Tensor:
        made: Tensor = torch.ops.aten._trilinear(*map(change, args[:3]), *args[3:], **kwargs)
        return made

    squares = rerun(torch.square)
    noise = _added_in_place(squares, result, rerun(torch.ones_like), how)
    u = max(how.u, _u_stored(how))
    return Noise(sigma=noise.sigma + 2 * C * u * squares.sqrt(), bound=noise.bound)


def _solve_triangular(args: Any, kwargs: Any, result: Tensor, how: How) -> Noise:
    """Return the noise of substitution.

    Source:
        Higham, "Accuracy and Stability of Numerical Algorithms", theorem 8.5:
        `|dx| <= gamma_n |inv(A)| |A| |x|`, with `sqrt(n)` for n where errors are random.
    """
    factor: Tensor = args[0]
    factor = factor.triu() if kwargs["upper"] else factor.tril()
    if kwargs.get("unitriangular", False):
        factor = factor - torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1) - 1)
    inverse = torch.linalg.inv(factor).abs()
    if kwargs.get("left", True):
        size = inverse @ (factor.abs() @ result.abs())
    else:
        size = (result.abs() @ factor.abs()) @ inverse
    return Noise(sigma=C * how.u_of_sums * math.sqrt(factor.shape[-1] + 3) * size)


REDUCTIONS: dict[str, Row] = {
    "_cdist_forward": _distances,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "_trilinear": _trilinear,
    "col2im": _scattered("col2im"),
    "cumprod": _cumprod,
    "cumsum": _cumsum,
    "index_add": _scattered("index_add"),
    "index_put": _scattered("index_put"),
    "index_reduce": _reduced_at_indices,
    "linalg_solve_triangular": _solve_triangular,
    "linalg_vector_norm": _norm,
    "logcumsumexp": _logcumsumexp,
    "logsumexp": _logsumexp,
    "mean": _mean,
    "mse_loss": _mse,
    "nansum": _sum,
    "nll_loss_forward": _nll,
    "norm": _norm,
    "prod": _prod,
    "scatter_add": _scattered("scatter_add"),
    "scatter_reduce": _reduced_at_indices,
    "std": _std,
    "sum": _sum,
    "var": _var,
    "vdot": _inner,
}
