"""Faults of the residual stream."""

from typing import Any

from torch import Tensor

from validator.faults.common import LAYER
from validator.faults.decoder import Decoder
from validator.faults.fault import Fault
from validator.wrapping import wrap

__all__ = ["FAULTS"]


def _residual_after_norm(decoder: Decoder, *, layer: int) -> None:
    """Take the residual from behind the norm."""
    block = decoder.layer(layer)

    def forward(inner: Any, hidden_states: Tensor, **kwargs: Any) -> Any:
        normed = block.input_layernorm(hidden_states)
        hidden_states = normed + block.self_attn(hidden_states=normed, **kwargs)[0]
        return hidden_states + block.mlp(block.post_attention_layernorm(hidden_states))

    wrap(block, forward)


FAULTS = (
    Fault(
        name="residual-after-norm",
        what="A layer adds to the normed hidden states, not to those before the norm.",
        module="*layers.{layer}",
        apply=_residual_after_norm,
        parameters=(LAYER,),
        needs=("layer.input_layernorm", "layer.post_attention_layernorm", "layer.self_attn", "layer.mlp"),
        # Further norms, a factor on what is added, and an MLP that returns its routing too.
        lacks=("layer.pre_feedforward_layernorm", "layer.residual_multiplier", "layer.mlp.router"),
    ),
)
