"""Data-parallel ports: each rank runs some of the sequences, alone or with ranks that share its model."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from tests.parallel.ports import Port
from tests.parallel.tensor_ports import shard_heads

__all__ = ["DATA", "DATA_TENSORS", "WRAPPED_DATA", "by_sequence"]


def by_sequence(model: nn.Module, given: Mapping[str, Any], *, parts: int) -> Any:
    """Run this rank's sequences; ranks next to each other share theirs where there are fewer parts."""
    index = dist.get_rank() * parts // dist.get_world_size()
    return model(
        **{
            name: value.chunk(parts)[index] if isinstance(value, Tensor) else value
            for name, value in given.items()
        }
    )


class DataParallel(nn.Module):
    """Gives each rank its sequences and puts the logits of all together."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input_ids: Tensor, use_cache: bool) -> Tensor:
        """Return the logits of all sequences."""
        own = input_ids.chunk(dist.get_world_size())[dist.get_rank()]
        logits = self.module(input_ids=own, use_cache=use_cache).logits
        gathered = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, logits.contiguous())
        return torch.cat(gathered)


def _data_tensors(model: nn.Module) -> nn.Module:
    """Split the heads inside of each pair of ranks that has the same sequences."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return shard_heads(model, 2, mesh["tp"].get_local_rank(), mesh["tp"].get_group())


DATA = Port(family="llama", ranks=2, run=partial(by_sequence, parts=2))
WRAPPED_DATA = Port(family="llama", ranks=2, shard=DataParallel)
DATA_TENSORS = Port(family="qwen3", ranks=4, shard=_data_tensors, run=partial(by_sequence, parts=2))
