"""Cases whose right answer is one sequence of values, whatever the order and format of the sums."""

from dataclasses import dataclass

import torch

from .calls import REFUSALS, Call, refusal
from .case import CollectiveCase, observed
from .draws import Memory, Ranks
from .exchanges import Exchange, Reduction
from .records import Blame, Kind, Observation

__all__ = ["ExactCase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCase(CollectiveCase):
    """A collective on values of which only one answer is right: new ones in each of `ranks.repeat` calls.

    Attributes:
        values: makes them; for a reduction so that no sum rounds, in any order.
        promised: whether torch promises that it works; what breaks otherwise is a hazard, not a fault.
        The others are those of `CollectiveCase`, `Exchange` and `Call`.
    """

    reduction: Reduction | None = None
    uneven: bool = False
    memory: Memory = Memory.CONTIGUOUS
    promised: bool = True

    def _observe(self, ranks: Ranks, dtype: torch.dtype, size: int) -> Observation:
        blames: list[Blame] = []
        message, before = "", None
        for turn in range(ranks.repeat):
            call = Call(
                exchange=Exchange(
                    collective=self.collective,
                    world_size=ranks.world_size,
                    size=size,
                    reduction=self.reduction,
                    uneven=self.uneven,
                    turn=turn,
                ),
                values=self.values,
                dtype=dtype,
                ranks=ranks,
                memory=self.memory,
            )
            try:
                got = call.run()
            except REFUSALS as error:
                message = refusal(error)
                break
            blames += call.explain(got, before)
            before = call
        return observed(
            call,
            case=self.name,
            kind=Kind.EXACT,
            message=message,
            blames=tuple(blames),
            promised=self.promised,
        )
