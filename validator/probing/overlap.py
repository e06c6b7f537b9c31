"""Cases that compute while a collective runs: a race shows as other bits than a synchronised run has."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .calls import REFUSALS, Call, refusal
from .case import CollectiveCase, observed
from .draws import Ranks, bits_of, poisoned
from .exchanges import Exchange, Reduction, meet, synchronize
from .records import Blame, Fault, Kind, Observation

__all__ = ["OverlapCase"]

_WORK = 512
"""Side of the square matrices whose product keeps a device busy before and beside the collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapCase(CollectiveCase):
    """A collective that is started, computed beside, and waited for, against the same one synchronised.

    The buffer is filled by the kernel just before the start, read by the one just after the wait, and then
    overwritten: a backend must order all three by itself.

    Attributes:
        values: makes them; the answer must be exact, so that only a race gives other bits.
        rounds: how many calls are in flight one after the other on the same buffers.
    """

    reduction: Reduction | None = None
    rounds: int = 4

    def _observe(self, ranks: Ranks, dtype: torch.dtype, size: int) -> Observation:
        first = Call(
            exchange=Exchange(
                collective=self.collective,
                world_size=ranks.world_size,
                size=size,
                reduction=self.reduction,
            ),
            values=self.values,
            dtype=dtype,
            ranks=ranks,
        )
        calls = [
            replace(first, exchange=replace(first.exchange, turn=turn))
            for turn in range(self.rounds * ranks.repeat)
        ]
        message, blames = "", []
        try:
            synchronised = [_synchronised(call) for call in calls]
            overlapped = _overlapped(calls)
        except REFUSALS as error:
            message = refusal(error)
        else:
            for call, safe, got in zip(calls, synchronised, overlapped, strict=True):
                # What is wrong either way is no race; the exact cases say what it is.
                blames += [] if call.explain(safe) else _race(safe, got, call.exchange.turn)
        return observed(first, case=self.name, kind=Kind.OVERLAP, message=message, blames=tuple(blames))


def _synchronised(call: Call) -> Tensor:
    meet(call.ranks.device)
    got = call.run()
    meet(call.ranks.device)
    return got


def _overlapped(calls: list[Call]) -> list[Tensor]:
    device = calls[0].ranks.device
    sent, received = calls[0].buffers()
    inputs = [call.buffers()[0] for call in calls]
    filling = poisoned(received.numel(), received.dtype).to(device)
    work = torch.ones(_WORK, _WORK, device=device)
    results = []
    for call, values in zip(calls, inputs, strict=True):
        # The product delays the copy into the buffer: a start that doesn't wait for it sends old bits.
        torch.mm(work, work)
        sent.copy_(values)
        if not call.exchange.in_place:
            received.copy_(filling)
        wait = call.start(sent, received)
        torch.mm(work, work)
        wait()
        results.append(received.clone())
        received.copy_(filling)
        if not call.exchange.in_place:
            sent.copy_(filling[:1].expand_as(sent))
    synchronize(device)
    return [result.cpu().reshape(-1) for result in results]


def _race(safe: Tensor, got: Tensor, turn: int) -> list[Blame]:
    wrong = (bits_of(safe) != bits_of(got)).nonzero().flatten()
    if not len(wrong):
        return []
    first = int(wrong[0])
    return [
        Blame(
            fault=Fault.RACE,
            turn=turn,
            first=first,
            last=int(wrong[-1]),
            count=len(wrong),
            size=safe.numel(),
            right=float(safe[first]),
            got=float(got[first]),
            detail="read after the wait, while the same call with forced synchronisation is right",
        )
    ]
