"""What healthy ports do differently, planted in a candidate: other orders of sums, fused code, other kernels.

Shape legend: B = batch, S = queries, T = keys, H = heads, K = key heads, D = channels of a head.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from validator.emulate import Emulation, Order, emulate, emulate_module
from validator.faults.kernels import attention_scores, spread_heads, wrap_kernel
from validator.wrapping import wrap

__all__ = [
    "attended_in_chunks",
    "attended_in_tiles",
    "emulated",
    "fused_in_float32",
    "gelu_of_a_cube",
    "gelu_of_a_product",
    "nothing",
    "one_sequence_at_a_time",
    "window_by_distance",
]

Change = Callable[[nn.Module], None]


def nothing(model: nn.Module) -> None:
    """Leave the candidate as it is: what differs is its setup."""


def emulated(emulation: Emulation, *suffixes: str) -> Change:
    """Compute the projections whose names end so with other arithmetic; all of them by default."""

    def apply(model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and name.endswith(suffixes or ""):
                emulate_module(module, emulation)

    return apply


def one_sequence_at_a_time(model: nn.Module) -> None:
    """Compute projections and attention of each sequence by itself, as kernels for few rows do."""
    few_rows = Emulation(accumulate="float32", order=Order.BLOCKED, block=16)

    def alone(inner: Any, x: Tensor) -> Tensor:
        with emulate(few_rows):
            return torch.cat([inner(sequence) for sequence in x.split(1)])

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        masks = [mask] * len(query) if mask is None or len(mask) == 1 else mask.split(1)
        of_each = [
            inner(attention, *sequence, **kwargs)
            for sequence in zip(query.split(1), key.split(1), value.split(1), masks, strict=True)
        ]
        outputs, weights = zip(*of_each, strict=True)
        return torch.cat(outputs), None if weights[0] is None else torch.cat(weights)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            wrap(module, alone)
    _change_kernels(model, kernel)


def attended_in_chunks(model: nn.Module) -> None:
    """Attend to two chunks of keys by themselves, and merge by the logarithms of their sums."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        scores, values = _scores_and_values(attention, query, key, value, mask, kwargs)
        first = key.shape[2] // 2
        parts, logarithms = [], []
        for chunk, chunk_values in zip(
            scores.tensor_split([first], -1), values.tensor_split([first], -2), strict=True
        ):
            # Of a chunk in which a query sees no key, the probabilities are 0/0 and the weight is 0.
            parts.append(torch.softmax(chunk, -1).nan_to_num() @ chunk_values)
            logarithms.append(chunk.logsumexp(-1, keepdim=True))
        weights = torch.stack(logarithms).softmax(0)
        return _as_made(weights[0] * parts[0] + weights[1] * parts[1], value)

    _change_kernels(model, kernel)


def attended_in_tiles(tile: int) -> Change:
    """Attend to so many keys at a time, with a running maximum, and store numerators as the values are."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        scores, values = _scores_and_values(attention, query, key, value, mask, kwargs)
        top = torch.full_like(scores[..., :1], -torch.inf)
        total, mixed = torch.zeros_like(top), 0.0
        for tile_scores, tile_values in zip(scores.split(tile, -1), values.split(tile, -2), strict=True):
            new_top = torch.maximum(top, tile_scores.amax(-1, keepdim=True))
            shift = new_top.clamp(min=torch.finfo(torch.float32).min)  # no key so far: exp(-inf - finite)
            p = torch.exp(tile_scores - shift)
            shrunk = torch.exp(top - shift)
            total = shrunk * total + p.sum(-1, keepdim=True)
            mixed = shrunk * mixed + p.to(value.dtype).float() @ tile_values
            top = new_top
        return _as_made(mixed / total, value)

    return lambda model: _change_kernels(model, kernel)


def window_by_distance(model: nn.Module) -> None:
    """Build the mask of sliding windows from how many keys before its own a query sees."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        window = attention.sliding_window
        if window is not None:
            place = torch.arange(key.shape[2])
            distance = place[:, None] - place
            is_seen = (distance >= 0) & (distance <= window - 1)
            mask = torch.zeros(()).to(query.dtype).masked_fill(~is_seen, -torch.inf)[None, None]
        return inner(attention, query, key, value, mask, **kwargs)

    _change_kernels(model, kernel)


def fused_in_float32(model: nn.Module) -> None:
    """Keep norms, and what stands between the projections of an MLP, in float32 and round once."""

    def norm_of(norm: Any) -> Callable[..., Tensor]:
        def forward(inner: Any, x: Tensor) -> Tensor:
            x32 = x.float()
            scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + norm.variance_epsilon)
            return (norm.weight.float() * (x32 * scale)).to(x.dtype)

        return forward

    def mlp_of(mlp: Any) -> Callable[..., Any]:
        def forward(inner: Any, x: Tensor) -> Any:
            gated = silu(mlp.gate_proj(x).float()) * mlp.up_proj(x).float()
            return mlp.down_proj(gated.to(x.dtype))

        return forward

    for name, module in model.named_modules():
        if hasattr(module, "variance_epsilon"):
            wrap(module, norm_of(module))
        elif name.endswith("mlp"):
            wrap(module, mlp_of(module))


def gelu_of_a_product(model: nn.Module) -> None:
    """Compute the tanh form of GELU with `x (1 + 0.044715 x^2)`."""
    _change_activations(model, lambda x: x * 0.5 * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))))


def gelu_of_a_cube(model: nn.Module) -> None:
    """Compute the tanh form of GELU with `x + 0.044715 x^3`."""
    root = math.sqrt(2 / math.pi)
    _change_activations(model, lambda x: 0.5 * x * (1 + torch.tanh(root * (x + 0.044715 * x.pow(3)))))


def _change_activations(model: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    for name, module in model.named_modules():
        if name.endswith("act_fn"):
            wrap(module, lambda inner, x: function(x.float()).to(x.dtype))


def _change_kernels(model: nn.Module, kernel: Callable[..., Any]) -> None:
    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            wrap_kernel(module, kernel)


def _scores_and_values(
    attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return float32 scores `[B, H, S, T]` and values `[B, H, T, D]`."""
    scores = attention_scores(
        attention, query, key, mask, scaling=options["scaling"], softcap=options.get("softcap")
    )
    return scores, spread_heads(attention, value).float()


def _as_made(mixed: Tensor, value: Tensor) -> tuple[Tensor, None]:
    """Return `[B, H, S, D]` as a kernel does."""
    return mixed.to(value.dtype).transpose(1, 2).contiguous(), None
