"""What cases of collectives share: how they run through dtypes and sizes, and what they say they saw."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .calls import Call
from .draws import Ranks, Values
from .exchanges import Collective
from .records import Blame, Kind, Observation, Status

__all__ = ["CollectiveCase", "observed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCase(ABC):
    """A collective on values, with each dtype and size.

    Attributes:
        name: of the values, such as `"dense integers"`.
        exposes: the faults that the values are there for.
        values: makes them.
    """

    name: str
    exposes: str
    collective: Collective
    values: Values
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]

    def run(self, ranks: Ranks) -> Iterator[Observation]:
        """Run it on this rank, and give what came."""
        for dtype in self.dtypes:
            for size in self.sizes:
                yield self._observe(ranks, dtype, size)

    @abstractmethod
    def _observe(self, ranks: Ranks, dtype: torch.dtype, size: int) -> Observation: ...


def observed(
    call: Call, *, case: str, kind: Kind, message: str, blames: tuple[Blame, ...] = (), **others: Any
) -> Observation:
    """Return what a rank observed.

    Args:
        call: that was made, or one of those.
        case: its name.
        kind: of the case.
        message: of the backend where it refused, else "".
        blames: what is wrong.
        others: further fields of the observation.
    """
    return Observation(
        rank=call.ranks.rank,
        case=case,
        kind=kind,
        call=str(call.exchange),
        dtype=str(call.dtype).removeprefix("torch."),
        size=call.exchange.output_size(call.ranks.rank),
        status=Status.UNSUPPORTED if message else Status.WRONG if blames else Status.OK,
        message=message,
        blames=blames,
        **others,
    )
