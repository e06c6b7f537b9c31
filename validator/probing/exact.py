"""Cases whose right answer is one sequence of values, whatever the order and format of the sums."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .calls import Call, refusal
from .draws import Memory, Ranks, Values
from .exchanges import Collective, Exchange, Reduction
from .records import Blame, Kind, Observation, Status

__all__ = ["ExactCase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCase:
    """A collective on values of which only one answer is right.

    Attributes:
        name: of the values, such as `"dense integers"`.
        exposes: the faults that the values are there for.
        values: makes them; for a reduction so that no sum rounds, in any order.
        promised: whether torch promises that it works; what breaks otherwise is a hazard, not a fault.
        The others are those of `Exchange` and `Call`.
    """

    name: str
    exposes: str
    collective: Collective
    values: Values
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    reduction: Reduction | None = None
    uneven: bool = False
    memory: Memory = Memory.CONTIGUOUS
    promised: bool = True

    def run(self, ranks: Ranks) -> Iterator[Observation]:
        """Run it on this rank, `ranks.repeat` times with new values each, and give what came."""
        for dtype in self.dtypes:
            for size in self.sizes:
                yield self._observe(ranks, dtype, size)

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
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                message = refusal(error)
                break
            blames += call.explain(got, before)
            before = call
        status = Status.UNSUPPORTED if message else Status.WRONG if blames else Status.OK
        return Observation(
            rank=ranks.rank,
            case=self.name,
            kind=Kind.EXACT,
            call=str(call.exchange),
            dtype=str(dtype).removeprefix("torch."),
            size=call.exchange.output_size(ranks.rank),
            status=status,
            message=message,
            promised=self.promised,
            blames=tuple(blames),
        )
