"""Cases that only measure: seconds of a collective by message size."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .calls import REFUSALS, Call, refusal
from .case import observed
from .draws import Ranks, Values
from .exchanges import Collective, Exchange, Reduction, communicate, meet, synchronize
from .records import Kind, Observation

__all__ = ["BandwidthCase", "bus_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthCase:
    """A collective's time by size.

    Attributes:
        sizes: bytes that a rank contributes; for all-gather that it receives.
        calls: timed ones; one before them is not. The median counts.
    """

    name: str
    collective: Collective
    values: Values
    sizes: tuple[int, ...]
    dtype: torch.dtype
    reduction: Reduction | None = None
    calls: int = 5

    def run(self, ranks: Ranks) -> Iterator[Observation]:
        """Time it on this rank."""
        figures, message = {}, ""
        for size_bytes in self.sizes:
            call = self._call(ranks, size_bytes)
            try:
                figures[size_bytes] = self._seconds(call)
            except REFUSALS as error:
                message = refusal(error)
                break
        yield observed(call, case=self.name, kind=Kind.BANDWIDTH, message=message, figures=figures)

    def _call(self, ranks: Ranks, size_bytes: int) -> Call:
        shared = self.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
        parts = ranks.world_size if shared else 1
        return Call(
            exchange=Exchange(
                collective=self.collective,
                world_size=ranks.world_size,
                size=max(1, size_bytes // (self.dtype.itemsize * parts)),
                reduction=self.reduction,
            ),
            values=self.values,
            dtype=self.dtype,
            ranks=ranks,
        )

    def _seconds(self, call: Call) -> float:
        sent, received = call.buffers()
        times = []
        for _ in range(self.calls + 1):
            meet(call.ranks.device)
            start = time.perf_counter()
            communicate(call.exchange, call.ranks.rank, sent, received)()
            synchronize(call.ranks.device)
            times.append(time.perf_counter() - start)
        return statistics.median(times[1:])


def bus_bytes(call: str, size_bytes: int, world_size: int) -> float:
    """Return the bytes that each rank's link carries at least, by which all collectives can be compared.

    Source:
        NVIDIA, nccl-tests, doc/PERFORMANCE.md: "bus bandwidth".
    """
    others = (world_size - 1) / world_size
    collective = call.partition(" ")[0]
    factor = {Collective.ALL_REDUCE: 2 * others, Collective.BROADCAST: 1.0, Collective.SEND_RECV: 1.0}
    return size_bytes * next((f for name, f in factor.items() if name == collective), others)
