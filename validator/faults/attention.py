"""Faults of attention: its scores, its masks, and how partial results are merged."""

import math
from typing import Any

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.faults.common import ATTENTION, HALF, LAYER, RANK, factor_parameter
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault
from validator.faults.kernels import attend, attention_scores, hidden_keys, spread_heads, wrap_kernel

__all__ = ["FAULTS"]


def _attn_scale(decoder: Decoder, *, layer: int, factor: float) -> None:
    """Scale the scores."""
    decoder.layer(layer).self_attn.scaling *= factor


def _attn_no_softcap(decoder: Decoder, *, layer: int) -> None:
    """Leave the soft cap on the scores out."""
    decoder.layer(layer).self_attn.attn_logit_softcapping = None


def _attn_no_sinks(decoder: Decoder, *, layer: int) -> None:
    """Leave the sinks out of the softmax's sum."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        scores = attention_scores(attention, query, key, mask, scaling=kwargs["scaling"], softcap=None)
        return attend(attention, scores, value)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _attn_base2_merge(decoder: Decoder, *, layer: int) -> None:
    """Merge two chunks of keys by the base-2 logarithms of their sums as if they were natural ones."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        scores = attention_scores(
            attention, query, key, mask, scaling=kwargs["scaling"], softcap=kwargs.get("softcap")
        )
        values = spread_heads(attention, value).float()
        first = key.shape[2] // 2
        chunks = zip(scores.tensor_split([first], -1), values.tensor_split([first], -2), strict=True)
        parts, weights = [], []
        for chunk, chunk_values in chunks:
            # Of a chunk in which a query sees no key, the probabilities are 0/0 and the weight is 0.
            parts.append(torch.softmax(chunk, -1).nan_to_num() @ chunk_values)
            weights.append(chunk.logsumexp(-1, keepdim=True) / math.log(2))
        merged = sum(w * part for w, part in zip(torch.stack(weights).softmax(0), parts, strict=True))
        return merged.to(value.dtype).transpose(1, 2).contiguous(), None

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _attn_half_scores(decoder: Decoder, *, layer: int) -> None:
    """Store the scores in the activations' dtype before they are scaled."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        scores = (query @ spread_heads(attention, key).mT).float() * kwargs["scaling"]
        hidden = hidden_keys(mask, queries=query.shape[2], keys=key.shape[2], device=query.device)
        return attend(attention, scores.masked_fill(hidden, -torch.inf), value)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


def _attn_window_short(decoder: Decoder, *, layer: int) -> None:
    """Hide the last key of the window."""
    window = decoder.layer(layer).self_attn.sliding_window
    _mask_distance(decoder, layer, window - 1, window, shown=False)


def _attn_window_long(decoder: Decoder, *, layer: int) -> None:
    """Show the first key beyond the window."""
    window = decoder.layer(layer).self_attn.sliding_window
    _mask_distance(decoder, layer, window, window + 1, shown=True)


def _attn_no_window(decoder: Decoder, *, layer: int) -> None:
    """Show all keys beyond the window."""
    _mask_distance(decoder, layer, decoder.layer(layer).self_attn.sliding_window, None, shown=True)


def _mask_distance(decoder: Decoder, layer: int, first: int, end: int | None, *, shown: bool) -> None:
    """Show or hide the keys that are `first`, ... and less than `end` tokens before the query."""

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        if mask is None or mask.shape[-1] <= first:
            raise UsageError(
                f"a window of {attention.sliding_window} hides nothing of {key.shape[2]} tokens, so that no "
                "fault of it shows: give longer inputs"
            )
        place = torch.arange(mask.shape[-1], device=mask.device)
        distance = place[:, None] - place
        is_changed = (distance >= first) & (distance < (len(place) if end is None else end))
        # A key that its own token must not see is padding, and stays hidden.
        own = mask.diagonal(dim1=-2, dim2=-1)[..., None, :]
        changed = torch.where(is_changed, own if shown else mask.min(), mask)
        return inner(attention, query, key, value, changed, **kwargs)

    wrap_kernel(decoder.layer(layer).self_attn, kernel)


_WINDOW = ("layer.self_attn.sliding_window",)

FAULTS = (
    Fault(
        name="attn-scale",
        what="Attention scores are multiplied by a wrong scale.",
        module=ATTENTION,
        apply=_attn_scale,
        parameters=(LAYER, factor_parameter(1.01), RANK),
        needs=("layer.self_attn.scaling",),
    ),
    Fault(
        name="attn-no-softcap",
        what="The soft cap on attention scores is left out.",
        module=ATTENTION,
        apply=_attn_no_softcap,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn.attn_logit_softcapping",),
        zoo=("attn-softcap-dropped",),
    ),
    Fault(
        name="attn-no-sinks",
        what="The attention sinks never reach the kernel.",
        module=ATTENTION,
        apply=_attn_no_sinks,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn.sinks",),
        zoo=("attn-sinks-unbound",),
    ),
    Fault(
        name="attn-base2-merge",
        what="Two chunks of keys are merged by base-2 logarithms as if they were natural ones.",
        module=ATTENTION,
        apply=_attn_base2_merge,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn.num_key_value_groups",),
        lacks=("layer.self_attn.sinks",),
        zoo=("attn-lse-base2",),
    ),
    Fault(
        name="attn-half-scores",
        what="Attention scores are stored in the activations' dtype before they are scaled.",
        module=ATTENTION,
        apply=_attn_half_scores,
        parameters=(LAYER, RANK),
        needs=("layer.self_attn.num_key_value_groups",),
        lacks=("layer.self_attn.sinks", "layer.self_attn.attn_logit_softcapping"),
        dtypes=HALF,
        zoo=("attn-eager-overflow",),
    ),
    Fault(
        name="attn-window-short",
        what="A sliding window loses its last key.",
        module=ATTENTION,
        apply=_attn_window_short,
        parameters=(LAYER, RANK),
        needs=_WINDOW,
        zoo=("kv-swa-roll",),
    ),
    Fault(
        name="attn-window-long",
        what="A sliding window has one key too many.",
        module=ATTENTION,
        apply=_attn_window_long,
        parameters=(LAYER, RANK),
        needs=_WINDOW,
        zoo=("swa-definition-mismatch",),
    ),
    Fault(
        name="attn-no-window",
        what="A sliding layer attends to everything before it.",
        module=ATTENTION,
        apply=_attn_no_window,
        parameters=(LAYER, RANK),
        needs=_WINDOW,
        zoo=("kv-swa-never-evict",),
    ),
)
