"""What each rank says, told to all: ranks that go on differently would wait for one another for ever."""

from typing import TypeVar

import torch.distributed as dist

__all__ = ["from_all_ranks", "is_alone"]

Said = TypeVar("Said")


def is_alone() -> bool:
    """Tell whether this process is the only rank."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def from_all_ranks(said: Said) -> list[Said]:
    """Return what the ranks say, in their order, the same on each; all of them have to call this."""
    if is_alone():
        return [said]
    found: list[Said] = [said] * dist.get_world_size()
    dist.all_gather_object(found, said)
    return found
