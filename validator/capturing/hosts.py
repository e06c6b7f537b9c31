"""Ranks that share no folder: each host's write into one of their own, and these are later copied together.

Which ranks share one is found out, not asked: a rank claims the place and leaves a mark there, and whoever
sees the mark has the same place. Among those who don't the next rank claims, until all have one.
"""

import secrets
from typing import Any

import torch.distributed as dist

from validator.errors import CaptureError

from .place import Place

__all__ = ["claim", "exchange"]


def claim(place: Place, *, rank: int, world_size: int) -> tuple[bool, str]:
    """Claim the place on every host; every rank must call this.

    Returns:
        Whether this rank leads those that write here, and a name of the capture that all ranks agree on.

    Raises:
        CaptureError: the place can't be claimed on some host. Then none is.
    """
    settled: set[int] = set()
    leads, name = False, ""
    while len(settled) < world_size:
        leader = min(set(range(world_size)) - settled)
        mark, error = None, None
        if rank == leader:
            try:
                place.claim(world_size=world_size)
                leads, mark = True, secrets.token_hex(8)
                place.leave_mark(mark)
            except CaptureError as refused:
                error = refused
        mark, message = exchange((mark, error and str(error)))[leader]
        if message is not None or mark is None:
            if leads:
                place.discard()
            raise error or CaptureError(message if leader == 0 else f"rank {leader}: {message}")
        saw = exchange(rank not in settled and place.has_mark(mark))
        if rank == leader:
            place.remove_mark(mark)
        settled |= {leader} | {other for other, seen in enumerate(saw) if seen}
        name = name or mark
    return leads, name


def exchange(value: Any) -> list[Any]:
    """Return the values that all ranks give, by rank; where there is no process group the value alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
