"""A collective as data: which part of whose input arrives where, and how torch is asked for it.

Everything but `communicate` is pure: any rank can tell what any rank must get.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Chunk", "Collective", "Exchange", "Reduction", "communicate", "meet", "synchronize"]


class Collective(StrEnum):
    """The collectives; `send_recv` is every rank sending to another one at once."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND_RECV = "send_recv"


class Reduction(StrEnum):
    """How contributions become one."""

    SUM = "sum"
    AVG = "avg"
    MAX = "max"
    MIN = "min"
    PRODUCT = "product"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A run of elements that a rank receives: `[start, stop)` of a rank's input, or of all, reduced.

    Attributes:
        source: the rank that it comes from; None where all contribute.
    """

    source: int | None
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One call of a collective, as every rank sees it.

    Attributes:
        reduction: of `all_reduce` and `reduce_scatter`; None for the others.
        size: elements of one part: what a rank sends to one other.
        uneven: parts differ in size from rank to rank, and in all-to-all one is empty.
        turn: number of the call: the root of a broadcast and the distance of a send go round with it.
    """

    collective: Collective
    world_size: int
    size: int
    reduction: Reduction | None = None
    uneven: bool = False
    turn: int = 0

    def __str__(self) -> str:
        return self.collective.value if self.reduction is None else f"{self.collective} {self.reduction}"

    @property
    def root(self) -> int:
        """The rank that broadcasts."""
        return self.turn % self.world_size

    @property
    def distance(self) -> int:
        """How many ranks further each rank sends."""
        return 1 + self.turn % (self.world_size - 1)

    @property
    def in_place(self) -> bool:
        """Whether the result takes the input's place."""
        return self.collective in (Collective.ALL_REDUCE, Collective.BROADCAST)

    def part(self, source: int, receiver: int) -> int:
        """Return how many elements of `source` are for `receiver`."""
        if not self.uneven:
            return self.size
        if self.collective is Collective.ALL_GATHER:
            return self.size + 2 * source
        if self.collective is Collective.REDUCE_SCATTER:
            return self.size + 2 * receiver
        return 0 if source == (receiver + 1) % self.world_size else self.size + source + 2 * receiver

    def input_size(self, source: int) -> int:
        """Return how many elements a rank's input has."""
        if self.collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
            return sum(self.part(source, receiver) for receiver in range(self.world_size))
        return self.part(source, source)

    def chunks(self, receiver: int) -> tuple[Chunk, ...]:
        """Return what a rank receives, in its order."""
        ranks = range(self.world_size)
        match self.collective:
            case Collective.ALL_REDUCE:
                return (Chunk(source=None, start=0, stop=self.size),)
            case Collective.REDUCE_SCATTER:
                start = sum(self.part(receiver, before) for before in range(receiver))
                return (Chunk(source=None, start=start, stop=start + self.part(receiver, receiver)),)
            case Collective.ALL_GATHER:
                return tuple(Chunk(source=s, start=0, stop=self.part(s, receiver)) for s in ranks)
            case Collective.ALL_TO_ALL:
                starts = {s: sum(self.part(s, before) for before in range(receiver)) for s in ranks}
                return tuple(
                    Chunk(source=s, start=starts[s], stop=starts[s] + self.part(s, receiver)) for s in ranks
                )
            case Collective.BROADCAST:
                return (Chunk(source=self.root, start=0, stop=self.size),)
        return (Chunk(source=(receiver - self.distance) % self.world_size, start=0, stop=self.size),)

    def output_size(self, receiver: int) -> int:
        """Return how many elements a rank receives."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks(receiver))


def communicate(
    exchange: Exchange, rank: int, sent: Tensor, received: Tensor, *, asynchronous: bool = False
) -> Callable[[], None]:
    """Call the collective.

    Args:
        exchange: what is exchanged.
        rank: this process's.
        sent: `[n, ...]` this rank's input; parts for several ranks lie one after the other along dim 0.
        received: `[m, ...]` where the result goes; `sent` itself where the exchange is in place.
        asynchronous: return at once; torch then promises the result only after the wait.

    Returns:
        What waits for the result.
    """
    ranks = range(exchange.world_size)
    options: dict[str, Any] = {"async_op": asynchronous}
    if exchange.reduction is not None:
        options["op"] = getattr(dist.ReduceOp, exchange.reduction.upper())
    match exchange.collective:
        case Collective.ALL_REDUCE:
            work = dist.all_reduce(received, **options)
        case Collective.BROADCAST:
            work = dist.broadcast(received, exchange.root, **options)
        case Collective.ALL_GATHER if exchange.uneven:
            parts = received.split([exchange.part(s, rank) for s in ranks])
            work = dist.all_gather(list(parts), sent, **options)
        case Collective.ALL_GATHER:
            work = _newest("all_gather_single", "all_gather_into_tensor")(received, sent, **options)
        case Collective.REDUCE_SCATTER if exchange.uneven:
            parts = sent.split([exchange.part(rank, p) for p in ranks])
            work = dist.reduce_scatter(received, list(parts), **options)
        case Collective.REDUCE_SCATTER:
            work = _newest("reduce_scatter_single", "reduce_scatter_tensor")(received, sent, **options)
        case Collective.ALL_TO_ALL:
            splits: tuple[list[int], list[int]] | tuple[()] = ()
            if exchange.uneven:
                splits = ([exchange.part(s, rank) for s in ranks], [exchange.part(rank, p) for p in ranks])
            work = dist.all_to_all_single(received, sent, *splits, **options)
        case Collective.SEND_RECV:
            to = (rank + exchange.distance) % exchange.world_size
            source = (rank - exchange.distance) % exchange.world_size
            pair = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]
            works = dist.batch_isend_irecv(pair)
            if asynchronous:
                return functools.partial(_wait_for, works)
            _wait_for(works)
            return _nothing
    return work.wait if asynchronous and work is not None else _nothing


def _newest(*names: str) -> Callable[..., Any]:
    # torch renamed these and warns of the older names, the only ones that its earlier releases have.
    found: Callable[..., Any] = next(getattr(dist, name) for name in names if hasattr(dist, name))
    return found


def _wait_for(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def _nothing() -> None:
    pass


def meet(device: torch.device) -> None:
    """Return once every rank is here and the device has done everything that it was given."""
    # Not a barrier: gloo's fails on some ranks with the error of a call that was refused just before it.
    dist.all_reduce(torch.ones(1, dtype=torch.int32, device=device))
    synchronize(device)


def synchronize(device: torch.device) -> None:
    """Wait until a device has done everything that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
