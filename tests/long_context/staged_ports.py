"""Small ports over two ranks whose logits are not on the first alone: stages of a pipeline, parts of a head.

Shape legend: s = tokens of a call, D = channels.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.long_context.ports import FAULTS
from validator.long_context.cache_layouts import token_dims

__all__ = ["candidate", "token_dims_of_stages"]


class Stage(nn.Module):
    """A model of two layers, the first on rank 0 with the embedding, the second on rank 1 with the head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        rank = dist.get_rank()
        model.model.layers = model.model.layers[rank : rank + 1]
        for layer in model.model.layers:
            layer.self_attn.layer_idx = 0  # the cache of a stage has its own layers alone
        model.config.num_hidden_layers = 1
        model.config.layer_types = (getattr(model.config, "layer_types", None) or [])[rank : rank + 1]
        if rank == 0:
            model.model.norm = model.lm_head = nn.Identity()
        self.part = model

    def forward(self, input_ids: Tensor, cache: Any = None, use_cache: bool = False) -> Any:
        """Return the logits and the cache of this stage, on the first stage hidden states in their place."""
        options = {"cache": cache, "use_cache": use_cache}
        if dist.get_rank() == 0:
            made = self.part(input_ids=input_ids, **options)
            dist.send(made.logits.contiguous(), 1)
            return made
        hidden = torch.empty(*input_ids.shape, self.part.config.hidden_size, dtype=torch.bfloat16)
        dist.recv(hidden, 0)
        return self.part(inputs_embeds=hidden, **options)


def candidate(folder: str, fault: str, dtype: torch.dtype) -> nn.Module:
    """Load a candidate and plant a fault on the rank that has what it needs."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return _PORTS[fault](model)


def _staged(model: Any, fault: str = "nothing", rank: int = 1) -> nn.Module:
    stage = Stage(model)
    if dist.get_rank() == rank:
        FAULTS[fault](stage.part)
    return stage


def _without_logits(model: Any) -> nn.Module:
    """Return nothing on the first stage, and the logits under no name of theirs on the second."""
    stage = Stage(model)
    stage.register_forward_hook(lambda module, args, made: {"scores": made.logits, "cache": made.cache})
    return stage


def _head_in_parts(model: Any, scale: float = 1.0) -> nn.Module:
    """Compute half of the logits on each rank; of the second half's weights, all are scaled."""
    rank = dist.get_rank()
    part = model.lm_head.weight.chunk(2)[rank].clone() * (scale if rank else 1.0)
    model.lm_head.weight = nn.Parameter(part)
    return model  # type: ignore[no-any-return]


def _other_copy(model: Any) -> nn.Module:
    """Change one weight of the second rank's own copy of the whole model."""
    if dist.get_rank() == 1:
        model.lm_head.weight.data[3, 3] *= 1.01
    return model  # type: ignore[no-any-return]


_PORTS: dict[str, Callable[[Any], nn.Module]] = {
    "nothing": _staged,
    "block_cleared": lambda model: _staged(model, "block_cleared"),
    "window_short": lambda model: _staged(model, "window_short", 0),
    "without_logits": _without_logits,
    "head_in_parts": _head_in_parts,
    "half_of_head_scaled": lambda model: _head_in_parts(model, 1.5),
    "copies": lambda model: model,
    "other_copy": _other_copy,
}


class BareStage(nn.Module):
    """Of two stages the second alone has a layer, whose cache is a bare tuple; it waits for the first."""

    def forward(self, input_ids: Tensor, past_key_values: Any = None) -> Any:
        """Return nothing and an empty cache on rank 0, hidden states and keys and values on rank 1."""
        hidden = torch.ones(*input_ids.shape, 4)
        if dist.get_rank() == 0:
            dist.send(hidden, 1)
            return None, ()
        dist.recv(hidden, 0)
        keys = hidden[:, :, None]
        if past_key_values:
            keys = torch.cat((past_key_values[0][0], keys), 1)
        return hidden, ((keys, keys),)


def token_dims_of_stages(rank: int, world_size: int) -> tuple[int, int] | None:
    """Return which dims of the stage's cache count tokens."""
    model = BareStage()
    _, cache = model(torch.zeros(1, 5, dtype=torch.int64))
    return token_dims(model, "past_key_values", cache)
