"""Pipeline-parallel ports: each rank has some of a decoder's layers and hands on what they make.

Shape legend: B = batch, b = sequences of a part of it, S = tokens, D = channels, V = vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.parallel.ports import Port
from validator.wrapping import wrap

__all__ = [
    "cut_port",
    "handed_on_narrow",
    "masks_by_own_number",
    "partial_scaled",
    "parts_swapped",
    "pipeline_port",
    "second_stage_first_layers",
]

PARTS = 2
_SCHEDULES: dict[str, Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
_TENSOR_PARALLEL = {
    f"{block}.{name}_proj": style
    for block, names, style in (
        ("self_attn", "qkv", ColwiseParallel()),
        ("self_attn", "o", RowwiseParallel()),
        ("mlp", ("gate", "up"), ColwiseParallel()),
        ("mlp", ("down",), RowwiseParallel()),
    )
    for name in names
}


def pipeline_port(
    *counts: int, schedule: str = "", tp: int = 1, load: Callable[[Any, int], None] | None = None
) -> Port:
    """Return a port whose layers are dealt to stages.

    Args:
        counts: layers of each stage.
        schedule: of torch's pipelining, which runs stages that number their layers as the whole model does;
            "" for stages that number them from 0, and send and receive by themselves.
        tp: ranks of each stage, which are tensor-parallel.
        load: changes the weights of the whole model before a stage, whose number it is told, takes its own.
    """
    return Port(
        family="llama",
        ranks=len(counts) * tp,
        shard=partial(_stage, counts=counts, schedule=schedule, tp=tp, load=load),
        run=partial(_run, stages=len(counts), schedule=schedule),
        changes={"num_hidden_layers": sum(counts)},
        kernel="sdpa",
    )


class Body(nn.Module):
    """What a stage has of the decoder's body."""

    def __init__(self, body: Any, layers: nn.Module, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.embed_tokens = body.embed_tokens if is_first else None
        self.layers = layers
        self.rotary_emb = body.rotary_emb
        self.norm = body.norm if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states `[b, S, D]` after this stage, given those before it or `[b, S]` tokens."""
        hidden: Tensor = x if self.embed_tokens is None else self.embed_tokens(x)
        positions = torch.arange(x.shape[1])[None]
        tables = self.rotary_emb(hidden, positions)
        for layer in self.layers.children():
            hidden = layer(hidden, position_ids=positions, position_embeddings=tables)
        return hidden if self.norm is None else self.norm(hidden)


class Stage(nn.Module):
    """A stage that is run on one part of the batch at a time.

    Attributes:
        mesh: its ranks and those of the other stages, axes `pp` and `tp`.
    """

    def __init__(self, model: Any, layers: nn.Module, mesh: Any, **ends: bool) -> None:
        super().__init__()
        self.mesh = mesh
        self.width = model.config.hidden_size
        self.model = Body(model.model, layers, **ends)
        self.lm_head = model.lm_head if ends["is_last"] else None

    def forward(self, x: Tensor) -> Tensor | None:
        """Return the hidden states `[b, S, D]` after this stage, the logits `[b, S, V]` after the last."""
        hidden: Tensor = self.model(x)
        return hidden if self.lm_head is None else self.lm_head(hidden)


class SendingStage(Stage):
    """A stage that is given the whole batch and does the rest by itself."""

    def forward(self, input_ids: Tensor) -> Tensor | None:
        """Return the logits `[B, S, V]` on the last stage, else None."""
        logits = []
        for part in input_ids.chunk(PARTS):
            result = super().forward(part if self.model.embed_tokens is not None else self.received(part))
            assert result is not None
            if self.lm_head is None:
                dist.send(result.contiguous(), dist.get_rank() + self.mesh["tp"].size())
            else:
                logits.append(result)
        return torch.cat(logits) if logits else None

    def received(self, part: Tensor) -> Tensor:
        """Return what the stage before this one hands on for a part of the batch."""
        hidden = torch.empty(*part.shape, self.width, dtype=torch.bfloat16)
        dist.recv(hidden, dist.get_rank() - self.mesh["tp"].size())
        return hidden


def _cut(model: Any, *, counts: tuple[int, ...]) -> nn.Module:
    """Keep a stage's layers of a model of transformers, and nothing where another stage has a module."""
    index = dist.get_rank()
    first = sum(counts[:index])
    model.model.layers = model.model.layers[first : first + counts[index]]
    # The model looks up there which kind of mask each layer has, by its number on the stage.
    model.config.layer_types = (getattr(model.config, "layer_types", None) or [])[first:]
    if index < len(counts) - 1:
        model.model.norm = model.lm_head = nn.Identity()
        model.config.final_logit_softcapping = None
    return model


def _run_cut(model: Any, given: Mapping[str, Any]) -> Any:
    """Run one part of the batch after the other, and return the logits on the last stage."""
    rank, logits = dist.get_rank(), []
    for part in given["input_ids"].chunk(PARTS):
        if rank == 0:
            hidden = model(input_ids=part, use_cache=False).logits
        else:
            received = torch.empty(*part.shape, model.config.hidden_size, dtype=torch.bfloat16)
            dist.recv(received, rank - 1)
            hidden = model(inputs_embeds=received, use_cache=False).logits
        if rank < dist.get_world_size() - 1:
            dist.send(hidden.contiguous(), rank + 1)
        else:
            logits.append(hidden)
    return logits


def cut_port(*counts: int, family: str = "llama", kernel: str = "sdpa") -> Port:
    """Return a port whose stages are models of transformers with some of the layers."""
    return Port(
        family=family,
        ranks=len(counts),
        shard=partial(_cut, counts=counts),
        run=_run_cut,
        changes={"num_hidden_layers": sum(counts)},
        kernel=kernel,
    )


def _stage(
    model: Any, *, counts: tuple[int, ...], schedule: str, tp: int, load: Callable[[Any, int], None] | None
) -> nn.Module:
    index = dist.get_rank() // tp
    first = sum(counts[:index])
    if load is not None:
        load(model, index)
    mesh = init_device_mesh("cpu", (len(counts), tp), mesh_dim_names=("pp", "tp"))
    mine = {str(i): model.model.layers[i] for i in range(first, first + counts[index])}
    for layer in mine.values() if tp > 1 else ():
        parallelize_module(layer, mesh["tp"], _TENSOR_PARALLEL)
    ends = {"is_first": index == 0, "is_last": index == len(counts) - 1}
    if schedule:
        return Stage(model, nn.ModuleDict(mine), mesh, **ends).eval()
    return SendingStage(model, nn.ModuleList(mine.values()), mesh, **ends).eval()


def _run(stage: Any, given: Mapping[str, Any], *, stages: int, schedule: str) -> Any:
    tokens = given["input_ids"]
    if not schedule:
        return stage(tokens)
    # A new stage each time, as a target's `run` has it: torch first runs it once to learn shapes.
    pp = stage.mesh["pp"]
    staged = PipelineStage(stage, pp.get_local_rank(), stages, torch.device("cpu"), group=pp.get_group())
    scheduled = _SCHEDULES[schedule](staged, PARTS)
    return scheduled.eval(*([tokens] if pp.get_local_rank() == 0 else []))


def second_stage_first_layers(model: Any, index: int) -> None:
    """Load the second stage with the weights of the first layers."""
    if index == 1:
        layers = model.model.layers
        layers[-1].load_state_dict(layers[0].state_dict())


def handed_on_narrow(stage: Any) -> None:
    """Receive hidden states in a narrower format than they were computed in."""
    received = stage.received
    stage.received = lambda part: received(part).to(torch.float8_e4m3fn).to(torch.bfloat16)


def partial_scaled(stage: Any) -> None:
    """Scale what the last rank of all gives to the sum of its last layer's down projection."""
    if dist.get_rank() == dist.get_world_size() - 1:
        wrap(list(stage.model.layers.children())[-1].mlp.down_proj, lambda inner, x: 1.01 * inner(x))


def parts_swapped(stage: Any) -> None:
    """Swap the parts of the batch between the first stage's end and the second one's begin."""
    received, swapped = stage.received, []

    def in_turn(part: Tensor) -> Tensor:
        if not swapped:
            swapped.extend([received(part) for _ in range(PARTS)])
        return swapped.pop()

    stage.received = in_turn


def masks_by_own_number(model: Any) -> None:
    """Give layers of the second stage the masks of those that have, in all, the numbers they have on it."""
    if dist.get_rank() == 1:
        model.config.layer_types = model.config.layer_types[::-1]
