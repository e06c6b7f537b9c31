"""Faults of the head, and of what becomes of its logits."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from validator.errors import UsageError
from validator.faults.decoder import Decoder, local
from validator.faults.fault import Fault
from validator.wrapping import wrap

__all__ = ["FAULTS"]


def _head_is_embedding(decoder: Decoder) -> None:
    """Let the head multiply by the embedding."""
    embedding = decoder.body.embed_tokens
    if torch.equal(local(embedding.weight), local(decoder.model.lm_head.weight)):
        raise UsageError("its head is tied to the embedding")
    wrap(decoder.model.lm_head, lambda inner, x: linear(x, embedding.weight))


def _head_random(decoder: Decoder) -> None:
    """Leave the head as it was initialised."""
    head = decoder.model.lm_head
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(head.weight.shape, generator=generator) * head.weight.shape[1] ** -0.5
    # A new parameter: the old one may be the embedding's too.
    head.weight = nn.Parameter(weight.to(head.weight), requires_grad=False)


def _head_bf16(decoder: Decoder) -> None:
    """Compute the head in bfloat16."""
    head = decoder.model.lm_head

    def forward(inner: Any, x: Tensor) -> Tensor:
        return linear(x.bfloat16(), local(head.weight).bfloat16()).to(x.dtype)

    wrap(head, forward)


def _logits_multiplied(decoder: Decoder) -> None:
    """Multiply the logits by what they are to be divided by."""
    config = copy.copy(decoder.model.config)  # another model may share it
    config.logits_scaling = 1 / config.logits_scaling
    decoder.model.config = config


FAULTS = (
    Fault(
        name="head-is-embedding",
        what="The head multiplies by the embedding, though its own weight is another.",
        module="lm_head",
        apply=_head_is_embedding,
        needs=("model.lm_head.weight", "body.embed_tokens.weight"),
        zoo=("logits-untied-ignored",),
    ),
    Fault(
        name="head-random",
        what="The head was never loaded, and is as it was initialised.",
        module="lm_head",
        apply=_head_random,
        needs=("model.lm_head.weight",),
        zoo=("logits-tied-uninit",),
    ),
    Fault(
        name="head-bf16",
        what="The head computes in bfloat16, in a model of another format.",
        module="lm_head",
        apply=_head_bf16,
        needs=("model.lm_head.weight",),
        dtypes=(torch.float32, torch.float16),
        zoo=("logits-bf16-head",),
    ),
    Fault(
        name="logits-multiplied",
        what="Logits are multiplied by the scale that they are to be divided by.",
        module="",
        apply=_logits_multiplied,
        needs=("model.config.logits_scaling",),
        zoo=("logits-scale-inverse",),
    ),
)
