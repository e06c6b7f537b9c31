"""What is known of aten operators: which ones only move values, and the noise inside the others.

`operator_sigma` gives the standard deviation of what float32 arithmetic inside an operator adds to
its result before the result is rounded (NUMERICS section 4's table). Operators without a row are
taken to be correctly rounded.

Shape legend: * = any shape; T = keys, S = queries, D = channels of a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.numerics.bands import U32, UNDERFLOW, C, matmul_sigma, softmax_sigma
from validator.numerics.formats import Format
from validator.numerics.rounding import round_nearest

__all__ = ["KERNELS", "Attention", "attention", "is_exact", "operator_name", "operator_sigma"]

_EXACT = frozenset(
    (
        "_copy",
        "_reshape_alias",
        "_reshape_copy",
        "_to_copy",
        "_unsafe_view",
        "abs",
        "alias",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "as_strided_scatter",
        "cat",
        "chunk",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "copy",
        "detach",
        "diagonal_scatter",
        "dropout",
        "embedding",
        "empty_like",
        "expand_copy",
        "fill",
        "flip",
        "full_like",
        "gather",
        "index",
        "index_copy",
        "index_put",
        "index_select",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "masked_fill",
        "masked_scatter",
        "max",
        "maximum",
        "min",
        "minimum",
        "native_dropout",
        "neg",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "permute_copy",
        "relu",
        "repeat",
        "repeat_interleave",
        "roll",
        "scatter",
        "select_scatter",
        "slice_scatter",
        "sort",
        "stack",
        "take_along_dim",
        "topk",
        "tril",
        "triu",
        "unfold_copy",
        "where",
        "zero",
        "zeros_like",
    )
)
_ELEMENTWISE = {
    "cos": 3.0,
    "cosh": 3.0,
    "erf": 3.0,
    "exp": 3.0,
    "exp2": 3.0,
    "expm1": 3.0,
    "log": 3.0,
    "log1p": 3.0,
    "log2": 3.0,
    "pow": 3.0,
    "reciprocal": 2.0,
    "rsqrt": 3.0,
    "sigmoid": 4.0,
    "sin": 3.0,
    "softplus": 4.0,
    "tanh": 4.0,
}


def operator_name(func: Any) -> str:
    """Return an aten operator's name without namespace, overload, and the mark of its in-place form."""
    name: str = func._schema.name.split("::")[1]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_exact(func: Any) -> bool:
    """Tell whether an operator only moves, selects or fills values, so that it rounds nothing."""
    name = operator_name(func)
    return bool(func.is_view) or name in _EXACT or not _has_floating_input(func)


def operator_sigma(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Tensor | None:
    """Return the standard deviation of float32 arithmetic inside an operator, before its result is rounded.

    Args:
        name: from `operator_name`.
        args: the operator's arguments, floating tensors in float64.
        kwargs: its keyword arguments.
        result: what it returned in float64.

    Returns:
        `[*]` float64 in the result's shape, or None where the operator is taken to be correctly rounded.

    Source:
        NUMERICS section 4.
    """
    row = _SIGMA.get(name)
    if row is not None:
        return row(args, kwargs, result)
    if name in _ELEMENTWISE and isinstance(result, Tensor):
        return C * U32 * _ELEMENTWISE[name] * result.abs()
    return None


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


def _has_floating_input(func: Any) -> bool:
    return any("Tensor" in str(a.type) for a in func._schema.arguments)


def _matmul(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    return matmul_sigma(args[0], args[1], result)


def _addmm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
    return matmul_sigma(args[1], args[2], result)


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


_SIGMA: dict[str, Callable[[tuple[Any, ...], dict[str, Any], Any], Tensor]] = {
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "sum": _sum,
    "mean": _mean,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "silu": _silu,
    "gelu": _gelu,
    "native_layer_norm": _layer_norm,
}


def _grouped_mm(
    x: Tensor,
    weights: Tensor,
    offsets: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """Compute `torch._grouped_mm` of `[N, K]` by `[E, K, M]` group by group: it has no float64 kernel."""
    if offsets is None or x.dim() != 2 or weights.dim() != 3:
        raise NotImplementedError("grouped matmul other than 2-D by 3-D with offsets")
    out = x.new_zeros(x.shape[0], weights.shape[-1])
    start = 0
    for expert, stop in enumerate(offsets.tolist()):
        out[start:stop] = x[start:stop] @ weights[expert]
        start = stop
    return out if bias is None else out + bias


KERNELS: dict[str, Callable[..., Any]] = {"_grouped_mm": _grouped_mm}
"""Float64 replacements of operators that have no float64 kernel, by operator name."""
