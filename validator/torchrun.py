"""Be one rank of a run that `torchrun` started, on this host or on several."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from validator.errors import UsageError
from validator.launch import init_process_group

__all__ = ["Launched", "joined", "launched"]

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Which rank of how many this process is."""

    rank: int
    world_size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} of a run that torchrun started"


def launched() -> Launched | None:
    """Return what `torchrun` made of this process; None where it is a process of its own.

    Raises:
        UsageError: the variables that it sets are no numbers.
    """
    if any(name not in os.environ for name in _VARIABLES):
        return None
    rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and world_size.isdecimal()):
        raise UsageError(f"RANK is {rank!r} and WORLD_SIZE is {world_size!r}: set numbers, or unset both")
    found = Launched(rank=int(rank), world_size=int(world_size))
    return found if found.world_size > 1 else None


@contextlib.contextmanager
def joined(device: str) -> Iterator[None]:
    """Have the run's process group ready inside, as `torchrun`'s variables describe it.

    Args:
        device: torch device type whose backend the group has, beside gloo for CPU tensors.
    """
    os.environ.setdefault("LOCAL_RANK", "0")
    init_process_group(device)
    try:
        yield
        # A rank that leaves early would look lost to those that still communicate.
        dist.barrier()
    finally:
        dist.destroy_process_group()
