"""Faults of MLPs and their activations."""

import math

import torch
from torch import nn

from validator.errors import UsageError
from validator.faults.common import LAYER, MLP, PROJECTIONS, RANK
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault
from validator.wrapping import wrap

__all__ = ["FAULTS"]


def _act_gelu(decoder: Decoder, *, layer: int) -> None:
    """Put the exact GELU in the activation's place."""
    mlp = decoder.layer(layer).mlp
    x = torch.linspace(-3, 3, 7)
    if torch.allclose(mlp.act_fn(x), nn.functional.gelu(x), atol=1e-6):
        raise UsageError("its activation is the exact GELU already")
    mlp.act_fn = nn.GELU()


def _mlp_swapped(decoder: Decoder, *, layer: int) -> None:
    """Let gate and up projection change places."""
    mlp = decoder.layer(layer).mlp
    wrap(mlp, lambda inner, x: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x)))


def _act_no_clamp(decoder: Decoder, *, layer: int) -> None:
    """Let gates and values of experts grow beyond their limit."""
    decoder.layer(layer).mlp.experts.limit = math.inf


FAULTS = (
    Fault(
        name="act-gelu",
        what="The MLP's activation is the exact GELU.",
        module=f"{MLP}.act_fn",
        apply=_act_gelu,
        parameters=(LAYER, RANK),
        needs=("layer.mlp.act_fn",),
        zoo=("act-gelu-erf",),
    ),
    Fault(
        name="mlp-swapped",
        what="Gate and up projection of an MLP have changed places.",
        module=MLP,
        apply=_mlp_swapped,
        parameters=(LAYER, RANK),
        needs=(*PROJECTIONS, "layer.mlp.act_fn"),
        zoo=("act-swiglu-swapped",),
    ),
    Fault(
        name="act-no-clamp",
        what="The clamp on the gates and values of a layer's experts is left out.",
        module=f"{MLP}.experts",
        apply=_act_no_clamp,
        parameters=(LAYER, RANK),
        needs=("layer.mlp.experts.limit",),
        zoo=("act-late-clamp-ref-missing",),
    ),
)
