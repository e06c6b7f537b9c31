"""Ports whose experts are split over ranks: their results summed, or tokens sent to them and back.

Shape legend: T = tokens of this rank, C = channels, k = experts of a token, P = pairs of a token and an
expert.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from tests.parallel.data_ports import by_sequence
from tests.parallel.ports import Port
from tests.parallel.tensor_ports import keep

__all__ = [
    "DATA_EXPERTS",
    "IDLE_RANK",
    "PLANNED",
    "PLANNED_GROUPS",
    "PLANNED_SENT",
    "PLANNED_SORTED",
    "SENT",
    "SHARED",
    "SUMMED",
    "SUMMED_TENSORS",
]


class SummedExperts:
    """Each rank runs its own experts on all tokens, and what they return is added up.

    Args:
        mlp: the block, whose `experts` hold this rank's.
        groups: over which the sum goes, one after the other.
        parts, index: how many ranks share the experts, and which of them this is.
    """

    def __init__(self, mlp: Any, groups: tuple[Any, ...], parts: int, index: int) -> None:
        self.mlp, self.groups, self.parts, self.index = mlp, groups, parts, index
        mlp.forward = self.forward

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Run the block."""
        x_TC = hidden_states.view(-1, hidden_states.shape[-1])
        _, weights_Tk, chosen_Tk = self.mlp.gate(x_TC)
        count = len(self.mlp.experts.down_proj)
        local_Tk = self.local(chosen_Tk)
        is_own = (local_Tk >= 0) & (local_Tk < count)
        term_TC = self.mlp.experts(
            x_TC, torch.where(is_own, local_Tk, count), weights_Tk.masked_fill(~is_own, 0.0)
        )
        return self.reduce(self.term(term_TC)).view_as(hidden_states)

    def local(self, chosen_Tk: Tensor) -> Tensor:
        """Return this rank's numbers of the experts."""
        return chosen_Tk - self.index * len(self.mlp.experts.down_proj)

    def term(self, term_TC: Tensor) -> Tensor:
        """Return what this rank gives to the sum."""
        return term_TC

    def reduce(self, term_TC: Tensor) -> Tensor:
        """Add up what all ranks give."""
        for group in self.groups:
            dist.all_reduce(term_TC, group=group)
        return term_TC


class SharedExperts(SummedExperts):
    """The shared expert, whose channels are split over the ranks, joins the experts' sum."""

    def term(self, term_TC: Tensor) -> Tensor:
        """Add this rank's part of the shared expert."""
        return term_TC + self.shared_TC

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Run the block."""
        x_TC = hidden_states.view(-1, hidden_states.shape[-1])
        self.shared_TC = torch.sigmoid(self.mlp.shared_expert_gate(x_TC)) * self.mlp.shared_expert(x_TC)
        return super().forward(hidden_states)


class SentExperts:
    """Each token is sent to the ranks of its experts, and what they return is sent back and weighed.

    Ranks may have different tokens. Args as of `SummedExperts`, with one group.
    """

    def __init__(self, mlp: Any, group: Any, parts: int) -> None:
        self.mlp, self.group, self.parts = mlp, group, parts
        mlp.forward = self.forward

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Run the block."""
        x_TC = hidden_states.reshape(-1, hidden_states.shape[-1])
        _, weights_Tk, chosen_Tk = self.mlp.gate(x_TC)
        count = len(self.mlp.experts.down_proj)
        order_P = chosen_Tk.flatten().argsort(stable=True)
        expert_P = chosen_Tk.flatten()[order_P]
        sizes = torch.bincount(expert_P // count, minlength=self.parts)
        sizes_back = torch.empty_like(sizes)
        dist.all_to_all_single(sizes_back, sizes, group=self.group)
        sent, received = sizes.tolist(), sizes_back.tolist()
        given_PC = self._exchange(x_TC[order_P // chosen_Tk.shape[-1]], sent, received)
        expert_given_P = self._exchange(expert_P, sent, received)
        if len(given_PC):
            ones = torch.ones_like(expert_given_P[:, None], dtype=x_TC.dtype)
            given_PC = self.mlp.experts(given_PC, self.local(expert_given_P)[:, None], ones)
        back_PC = self._exchange(given_PC, received, sent)
        return self.combine(back_PC, order_P, weights_Tk).view_as(hidden_states)

    def local(self, expert_P: Tensor) -> Tensor:
        """Return this rank's numbers of the experts that it was sent tokens for."""
        return expert_P % len(self.mlp.experts.down_proj)

    def combine(self, back_PC: Tensor, order_P: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weigh what came back by token."""
        own_PC = torch.empty_like(back_PC)
        own_PC[order_P] = back_PC
        return (own_PC.view(*weights_Tk.shape, -1) * weights_Tk[..., None]).sum(1)

    def _exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        output = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(output, rows.contiguous(), received, sent, group=self.group)
        return output


def _summed(model: Any) -> nn.Module:
    parts, index = dist.get_world_size(), dist.get_rank()
    for layer in model.model.layers:
        _keep_experts(layer.mlp.experts, parts, index)
        layer.mlp.plan = SummedExperts(layer.mlp, (None,), parts, index)
    return model


def _shared(model: Any) -> nn.Module:
    parts, index = dist.get_world_size(), dist.get_rank()
    for layer in model.model.layers:
        _keep_experts(layer.mlp.experts, parts, index)
        shared = layer.mlp.shared_expert
        for projection, dim in ((shared.gate_proj, 0), (shared.up_proj, 0), (shared.down_proj, 1)):
            keep(projection, "weight", dim, parts, index)
        layer.mlp.plan = SharedExperts(layer.mlp, (None,), parts, index)
    return model


def _sent(model: Any) -> nn.Module:
    parts, index = dist.get_world_size(), dist.get_rank()
    for layer in model.model.layers:
        _keep_experts(layer.mlp.experts, parts, index)
        layer.mlp.plan = SentExperts(layer.mlp, None, parts)
    return model


def _summed_tensors(model: Any) -> nn.Module:
    """Split the experts over one axis of a mesh and their channels over the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "tp"))
    for layer in model.model.layers:
        experts = layer.mlp.experts
        _keep_experts(experts, 2, mesh["ep"].get_local_rank())
        halves = [half.chunk(2, 1)[mesh["tp"].get_local_rank()] for half in experts.gate_up_proj.chunk(2, 1)]
        experts.gate_up_proj = nn.Parameter(torch.cat(halves, 1), requires_grad=False)
        keep(experts, "down_proj", 2, 2, mesh["tp"].get_local_rank())
        groups = (mesh["ep"].get_group(), mesh["tp"].get_group())
        layer.mlp.plan = SummedExperts(layer.mlp, groups, 2, mesh["ep"].get_local_rank())
    return model


def _data_experts(model: Any) -> nn.Module:
    """Split the experts inside of each group of ranks that has the same tokens."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    for layer in model.model.layers:
        _keep_experts(layer.mlp.experts, 2, mesh["ep"].get_local_rank())
        layer.mlp.plan = SentExperts(layer.mlp, mesh["ep"].get_group(), 2)
    return model


def _keep_experts(experts: Any, parts: int, index: int) -> None:
    for name in ("gate_up_proj", "down_proj"):
        keep(experts, name, 0, parts, index)
    experts.num_experts = len(experts.down_proj)


def _idle_last(model: nn.Module) -> None:
    """Let the last two experts, those of the last of four ranks, score an average, which is hardly chosen."""
    for layer in model.model.layers:  # type: ignore[union-attr]
        weight = layer.mlp.gate.weight
        weight[-2:] = weight[:-2].mean(0)


PLANNED = Port(family="qwen3-moe", ranks=2, distributed={"tp_plan": "auto", "tp_size": 2, "ep_size": 2})
# The kernels of these sort the tokens of all experts on each rank.
PLANNED_SORTED = Port(family="mixtral", ranks=2, distributed=PLANNED.distributed)
PLANNED_GROUPS = Port(
    family="deepseek-v3", ranks=4, distributed={"tp_plan": "auto", "tp_size": 4, "ep_size": 4}
)
PLANNED_SENT = Port(
    family="qwen3-moe",
    ranks=4,
    distributed={"tp_plan": "auto", "tp_size": 4, "ep_size": 4, "ep_implementation": "all_to_all"},
)
SUMMED = Port(family="qwen3-moe", ranks=2, shard=_summed)
SHARED = Port(family="qwen2-moe", ranks=2, shard=_shared)
SENT = Port(family="qwen3-moe", ranks=2, shard=_sent)
IDLE_RANK = Port(family="qwen3-moe", ranks=4, shard=_sent, fill=_idle_last)
SUMMED_TENSORS = Port(family="qwen3-moe", ranks=4, shard=_summed_tensors)
DATA_EXPERTS = Port(family="qwen3-moe", ranks=4, shard=_data_experts, run=partial(by_sequence, parts=2))
