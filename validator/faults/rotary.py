"""Faults of rotary embeddings: their frequencies, their tables, and which channels they turn."""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.faults.common import ATTENTION, LAYER, RANK
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault, Parameter
from validator.wrapping import replaced, wrap

__all__ = ["FAULTS"]


def _rope_sign(decoder: Decoder, *, layer: int) -> None:
    """Turn queries and keys the other way."""

    def forward(inner: Any, *args: Any, position_embeddings: tuple[Tensor, Tensor], **kwargs: Any) -> Any:
        cos, sin = position_embeddings
        return inner(*args, position_embeddings=(cos, -sin), **kwargs)

    wrap(decoder.layer(layer).self_attn, forward)


def _rope_interleaved(decoder: Decoder, *, layer: int) -> None:
    """Turn neighbours, not halves, into each other."""
    if getattr(decoder.body.config, "rope_interleave", False):
        raise UsageError("its rotary embedding pairs neighbouring channels already")

    def rotated(x_BHSD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = torch.stack((-x_BHSD[..., 1::2], x_BHSD[..., ::2]), -1).flatten(-2)
        return x_BHSD * cos + turned * sin

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        half = cos.shape[-1] // 2
        if cos.shape[-1] != q.shape[-1]:
            raise UsageError(
                f"rope-interleaved needs rotary tables for all {q.shape[-1]} channels of a head, and these "
                f"have {cos.shape[-1]}"
            )
        cos, sin = (x[..., :half].repeat_interleave(2, -1).unsqueeze(1) for x in (cos, sin))
        return rotated(q, cos, sin), rotated(k, cos, sin)

    _replace_rotation(decoder, layer, "apply_rotary_pos_emb", rotate)


def _rope_halves(decoder: Decoder, *, layer: int) -> None:
    """Turn halves, not neighbours, into each other."""
    if not decoder.body.config.rope_interleave:
        raise UsageError("its rotary embedding pairs halves already")

    def rotated(x_BHSD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x_BHSD.chunk(2, -1)
        return x_BHSD * cos + torch.cat((-second, first), -1) * sin

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotated(q, cos.unsqueeze(1), sin.unsqueeze(1)), rotated(k, cos.unsqueeze(1), sin.unsqueeze(1))

    _replace_rotation(decoder, layer, "apply_rotary_pos_emb_interleave", rotate)


def _replace_rotation(decoder: Decoder, layer: int, name: str, rotate: Callable[..., Any]) -> None:
    attention = decoder.layer(layer).self_attn
    modeling = sys.modules[type(attention).__module__]
    if not hasattr(modeling, name):
        raise UsageError(f"no rotation can be replaced in {modeling.__name__}: it has no function {name}")

    def forward(inner: Any, *args: Any, **kwargs: Any) -> Any:
        with replaced(modeling, name, rotate):
            return inner(*args, **kwargs)

    wrap(attention, forward)


def _rope_theta(decoder: Decoder, *, theta: float) -> None:
    """Compute the frequencies from another base."""
    if _is_scaled(decoder):
        raise UsageError("its rotary frequencies are scaled, and the fault would compute without that")
    rotary = decoder.body.rotary_emb
    rotary.inv_freq = _frequencies(rotary.inv_freq, theta)


def _rope_unscaled(decoder: Decoder) -> None:
    """Compute the frequencies from the base alone."""
    if not _is_scaled(decoder):
        raise UsageError("its rotary frequencies are not scaled")
    rotary = decoder.body.rotary_emb
    rotary.inv_freq = _frequencies(rotary.inv_freq, _scaling(decoder, "rope_theta"))


def _is_scaled(decoder: Decoder) -> bool:
    is_scaled: bool = decoder.body.config.rope_parameters.get("rope_type", "default") != "default"
    return is_scaled


def _frequencies(like: Tensor, theta: float) -> Tensor:
    return theta ** -(torch.arange(len(like), dtype=torch.float32, device=like.device) / len(like))


def _rope_yarn_field(decoder: Decoder, *, layer: int) -> None:
    """Scale the scores by `mscale` where `mscale_all_dim` is meant."""
    wrong, right = (_yarn_scale(decoder, name) for name in ("mscale", "mscale_all_dim"))
    if wrong == right:
        raise UsageError("its `mscale` and `mscale_all_dim` are the same")
    decoder.layer(layer).self_attn.scaling *= (wrong / right) ** 2


def _rope_yarn_inflated(decoder: Decoder) -> None:
    """Multiply the tables by `mscale`'s scale, and not by its ratio to that of `mscale_all_dim`."""
    decoder.body.rotary_emb.attention_scaling = _yarn_scale(decoder, "mscale")


def _rope_yarn_collapsed(decoder: Decoder) -> None:
    """Leave the scale of the tables out."""
    rotary = decoder.body.rotary_emb
    if rotary.attention_scaling == 1.0:
        raise UsageError("its rotary tables have no scale, or a scale of 1")
    rotary.attention_scaling = 1.0


def _yarn_scale(decoder: Decoder, field: str) -> float:
    return 0.1 * _scaling(decoder, field) * math.log(_scaling(decoder, "factor")) + 1.0


def _scaling(decoder: Decoder, name: str) -> float:
    value = decoder.body.config.rope_parameters.get(name)
    if value is None:
        raise UsageError(
            f"the rope_parameters of its config have no {name!r}: its rotary embedding is another"
        )
    return float(value)


def _rope_bf16_tables(decoder: Decoder) -> None:
    """Multiply positions by frequencies in bfloat16."""
    if "mrope_section" in decoder.body.config.rope_parameters:
        raise UsageError("its tokens have three positions each")
    rotary = decoder.body.rotary_emb

    def forward(inner: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].bfloat16() * rotary.inv_freq.bfloat16()
        repeats = inner(x, position_ids)[0].shape[-1] // angles.shape[-1]
        angles = angles.repeat(1, 1, repeats)
        scale = rotary.attention_scaling
        return (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)

    wrap(rotary, forward)


def _rope_bf16_frequencies(decoder: Decoder) -> None:
    """Keep the frequencies in bfloat16."""
    rotary = decoder.body.rotary_emb
    rotary.inv_freq = rotary.inv_freq.to(torch.bfloat16)


FAULTS = (
    Fault(
        name="rope-sign",
        what="Rotary embedding turns queries and keys the other way.",
        module=ATTENTION,
        apply=_rope_sign,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn", "body.rotary_emb"),
    ),
    Fault(
        name="rope-interleaved",
        what="Rotary embedding pairs neighbouring channels, where the weights are for halves.",
        module=ATTENTION,
        apply=_rope_interleaved,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn", "body.rotary_emb"),
        zoo=("rope-neox-vs-gptj",),
    ),
    Fault(
        name="rope-halves",
        what="Rotary embedding pairs halves, where the weights are for neighbouring channels.",
        module=ATTENTION,
        apply=_rope_halves,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn.config.rope_interleave", "body.rotary_emb"),
        zoo=("rope-neox-vs-gptj",),
    ),
    Fault(
        name="rope-theta",
        what="Rotary frequencies come from another base than the config's.",
        module="*rotary_emb",
        apply=_rope_theta,
        parameters=(Parameter(name="theta", kind=float, default=5e4, what="the base"),),
        needs=("body.rotary_emb.inv_freq", "body.config.rope_parameters"),
        zoo=("rope-theta-unused",),
    ),
    Fault(
        name="rope-bf16-frequencies",
        what="Rotary frequencies were cast to bfloat16 with the rest of the model.",
        module="*rotary_emb",
        apply=_rope_bf16_frequencies,
        needs=("body.rotary_emb.inv_freq",),
        zoo=("rope-invfreq-bf16",),
    ),
    Fault(
        name="rope-bf16-tables",
        what="Positions are multiplied by rotary frequencies in bfloat16.",
        module="*rotary_emb",
        apply=_rope_bf16_tables,
        needs=("body.rotary_emb.attention_scaling", "body.config.rope_parameters"),
        zoo=("rope-bf16-tables",),
    ),
    Fault(
        name="rope-unscaled",
        what="The scaling of rotary frequencies for long contexts is ignored.",
        module="*rotary_emb",
        apply=_rope_unscaled,
        needs=("body.rotary_emb.inv_freq", "body.config.rope_parameters"),
        zoo=("rope-llama3-ignored",),
    ),
    Fault(
        name="rope-yarn-field",
        what="YaRN's scale of the scores comes from `mscale`, where `mscale_all_dim` is meant.",
        module=ATTENTION,
        apply=_rope_yarn_field,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn.scaling", "body.config.rope_parameters"),
        zoo=("rope-yarn-mscale-field",),
    ),
    Fault(
        name="rope-yarn-inflated",
        what="Rotary tables are multiplied by YaRN's `mscale`, not by its ratio to `mscale_all_dim`.",
        module="*rotary_emb",
        apply=_rope_yarn_inflated,
        needs=("body.rotary_emb.attention_scaling", "body.config.rope_parameters"),
        zoo=("rope-yarn-cos-inflated",),
    ),
    Fault(
        name="rope-yarn-collapsed",
        what="YaRN's scale of the rotary tables is left out.",
        module="*rotary_emb",
        apply=_rope_yarn_collapsed,
        needs=("body.rotary_emb.attention_scaling",),
        zoo=("rope-yarn-factor-collapse",),
    ),
)
