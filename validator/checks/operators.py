"""What is known of aten operators by themselves: which only move values, and which have no float64 kernel."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

__all__ = ["ATTENTION", "KERNELS", "accumulates", "is_exact", "operator_name"]

ATTENTION = "scaled_dot_product_attention"
"""The operator that every fused attention is judged as."""

_EXACT = frozenset(
    (
        "_copy",
        "_reshape_alias",
        "_reshape_copy",
        "_to_copy",
        "_unsafe_view",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "abs",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "alias",
        "amax",
        "amin",
        "aminmax",
        "argmax",
        "argmin",
        "as_strided_copy",
        "as_strided_scatter",
        "block_diag",
        "cat",
        "channel_shuffle",
        "chunk",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "copy",
        "cummax",
        "cummin",
        "detach",
        "diag_embed",
        "diagonal_scatter",
        "dropout",
        "embedding",
        "empty_like",
        "expand_copy",
        "fill",
        "flip",
        "fmax",
        "fmin",
        "full_like",
        "gather",
        "hardshrink",
        "im2col",
        "index",
        "index_copy",
        "index_fill",
        "index_put",
        "index_select",
        "kthvalue",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "masked_fill",
        "masked_scatter",
        "masked_select",
        "max",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "maximum",
        "median",
        "min",
        "minimum",
        "mode",
        "nanmedian",
        "nan_to_num",
        "native_channel_shuffle",
        "native_dropout",
        "neg",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "permute_copy",
        "pixel_shuffle",
        "pixel_unshuffle",
        "reflection_pad1d",
        "reflection_pad2d",
        "reflection_pad3d",
        "relu",
        "repeat",
        "repeat_interleave",
        "replication_pad1d",
        "replication_pad2d",
        "replication_pad3d",
        "roll",
        "rot90",
        "scatter",
        "select_copy",
        "select_scatter",
        "sgn",
        "slice_copy",
        "slice_scatter",
        "sort",
        "split_copy",
        "split_with_sizes_copy",
        "squeeze_copy",
        "stack",
        "t_copy",
        "take",
        "take_along_dim",
        "topk",
        "transpose_copy",
        "tril",
        "triu",
        "unbind_copy",
        "unfold_copy",
        "unsafe_chunk",
        "unsafe_split",
        "unsafe_split_with_sizes",
        "unsqueeze_copy",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "view_copy",
        "where",
        "zero",
        "zeros_like",
    )
)


def operator_name(func: Any) -> str:
    """Return an aten operator's name without namespace, overload, and the mark of its in-place form."""
    name: str = func._schema.name.split("::")[1]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_exact(func: Any) -> bool:
    """Tell whether an operator only moves, selects or fills values, so that it rounds nothing."""
    if "reduce" in func._schema.overload_name:
        return False
    return bool(func.is_view) or operator_name(func) in _EXACT or not _has_tensor_input(func)


def accumulates(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether an operator that otherwise moves values adds some of them up here."""
    name = operator_name(func)
    if name == "abs":
        return isinstance(args[0], Tensor) and args[0].is_complex()
    if "index_put" not in name:
        return False
    return bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))


def _has_tensor_input(func: Any) -> bool:
    return any("Tensor" in str(a.type) for a in func._schema.arguments)


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
