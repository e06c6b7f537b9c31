"""How faults of one process are planted: wrong formulas, wrong weights, wrong wiring.

Shape legend: B = batch, S = sequence, H = heads, D = head dim, * = any.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from validator.errors import UsageError
from validator.faults.decoder import Decoder, bias_of, local, wrap

__all__ = [
    "act_gelu",
    "attn_no_softcap",
    "attn_scale",
    "head_is_embedding",
    "kernel_row",
    "kernel_scale",
    "layer_twice",
    "mlp_swapped",
    "norm_eps",
    "norm_eps_after_root",
    "residual_after_norm",
    "rope_bf16_frequencies",
    "rope_interleaved",
    "rope_sign",
    "rope_theta",
    "weight_row",
    "weight_scale",
]


def norm_eps(decoder: Decoder, *, layer: int, eps: float) -> None:
    """Give a norm another epsilon."""
    decoder.layer(layer).input_layernorm.variance_epsilon = eps


def norm_eps_after_root(decoder: Decoder, *, layer: int) -> None:
    """Add a norm's epsilon to the root."""
    norm = decoder.layer(layer).input_layernorm

    def forward(inner: Any, x: Tensor) -> Tensor:
        root = x.float().square().mean(-1, keepdim=True).sqrt()
        normed: Tensor = norm.weight * (x.float() / (root + norm.variance_epsilon)).to(x.dtype)
        return normed

    wrap(norm, forward)


def attn_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale the scores."""
    decoder.layer(layer).self_attn.scaling *= factor


def attn_no_softcap(decoder: Decoder, *, layer: int) -> None:
    """Leave the soft cap on the scores out."""
    decoder.layer(layer).self_attn.attn_logit_softcapping = None


def residual_after_norm(decoder: Decoder, *, layer: int) -> None:
    """Take the residual from behind the norm."""
    block = decoder.layer(layer)

    def forward(inner: Any, hidden_states: Tensor, **kwargs: Any) -> Any:
        normed = block.input_layernorm(hidden_states)
        hidden_states = normed + block.self_attn(hidden_states=normed, **kwargs)[0]
        return hidden_states + block.mlp(block.post_attention_layernorm(hidden_states))

    wrap(block, forward)


def act_gelu(decoder: Decoder, *, layer: int) -> None:
    """Put the exact GELU in the activation's place."""
    decoder.layer(layer).mlp.act_fn = nn.GELU()


def mlp_swapped(decoder: Decoder, *, layer: int) -> None:
    """Let gate and up projection change places."""
    mlp = decoder.layer(layer).mlp
    wrap(mlp, lambda inner, x: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x)))


def weight_row(decoder: Decoder, *, layer: int, row: int, factor: float) -> None:
    """Scale one row of a weight."""
    weight = local(decoder.layer(layer).mlp.up_proj.weight)
    _demand_row(weight, row)
    weight[row] *= factor


def kernel_row(decoder: Decoder, *, layer: int, row: int, factor: float) -> None:
    """Compute with one row of a weight scaled."""
    projection = decoder.layer(layer).mlp.up_proj
    _demand_row(local(projection.weight), row)

    def forward(inner: Any, x: Tensor) -> Tensor:
        weight = local(projection.weight).clone()
        weight[row] *= factor
        return linear(x, weight, bias_of(projection))

    wrap(projection, forward)


def weight_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale a weight."""
    local(decoder.layer(layer).mlp.down_proj.weight).mul_(factor)


def kernel_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale what a projection computes."""
    projection = decoder.layer(layer).self_attn.v_proj

    def forward(inner: Any, x: Tensor) -> Tensor:
        # In float32 before the one rounding: in bf16 a product with 1.001 rounds back to where it was.
        bias = bias_of(projection)
        y = linear(x.float(), local(projection.weight).float(), None if bias is None else bias.float())
        return (y * factor).to(x.dtype)

    wrap(projection, forward)


def layer_twice(decoder: Decoder, *, layer: int) -> None:
    """Load a layer with the weights of the one before."""
    if layer == 0:
        raise UsageError(
            "layer=0 has no layer before it whose weights could be loaded twice: give layer=1 or more"
        )
    decoder.layer(layer).load_state_dict(decoder.layer(layer - 1).state_dict())


def head_is_embedding(decoder: Decoder) -> None:
    """Let the head multiply by the embedding."""
    embedding = decoder.body.embed_tokens
    wrap(decoder.model.lm_head, lambda inner, x: linear(x, embedding.weight))


def rope_sign(decoder: Decoder, *, layer: int) -> None:
    """Turn queries and keys the other way."""

    def forward(inner: Any, *args: Any, position_embeddings: tuple[Tensor, Tensor], **kwargs: Any) -> Any:
        cos, sin = position_embeddings
        return inner(*args, position_embeddings=(cos, -sin), **kwargs)

    wrap(decoder.layer(layer).self_attn, forward)


def rope_interleaved(decoder: Decoder, *, layer: int) -> None:
    """Turn neighbours, not halves, into each other."""
    attention = decoder.layer(layer).self_attn
    modeling = sys.modules[type(attention).__module__]
    if not hasattr(modeling, "apply_rotary_pos_emb"):
        raise UsageError(
            f"rope-interleaved can't be planted: {modeling.__name__} has no function apply_rotary_pos_emb"
        )

    def rotated(x_BHSD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = torch.stack((-x_BHSD[..., 1::2], x_BHSD[..., ::2]), -1).flatten(-2)
        return x_BHSD * cos + turned * sin

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        half = cos.shape[-1] // 2
        cos, sin = (x[..., :half].repeat_interleave(2, -1).unsqueeze(1) for x in (cos, sin))
        return rotated(q, cos, sin), rotated(k, cos, sin)

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        with _replaced(modeling, "apply_rotary_pos_emb", rotate):
            return inner(*args, **kwargs)

    wrap(attention, forward)


def rope_theta(decoder: Decoder, *, theta: float) -> None:
    """Compute the frequencies from another base."""
    rotary = decoder.body.rotary_emb
    count = len(rotary.inv_freq)
    exponents = torch.arange(count, dtype=torch.float32, device=rotary.inv_freq.device) / count
    rotary.inv_freq = theta**-exponents


def rope_bf16_frequencies(decoder: Decoder) -> None:
    """Keep the frequencies in bfloat16."""
    rotary = decoder.body.rotary_emb
    rotary.inv_freq = rotary.inv_freq.to(torch.bfloat16)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _demand_row(weight: Tensor, row: int) -> None:
    if row >= len(weight):
        raise UsageError(f"row={row} is not in the weight: it has {len(weight)} rows, 0 to {len(weight) - 1}")
