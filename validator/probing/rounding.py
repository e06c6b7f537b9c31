"""Cases whose sums round: is a reduction deterministic, in which order and which format does it add?"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from .calls import REFUSALS, Call, refusal, supported_format
from .case import CollectiveCase, observed
from .draws import Ranks, bits_of
from .exchanges import Collective, Exchange, Reduction
from .orders import recognise
from .records import Kind, Observation, Order

__all__ = ["OrderCase"]

_ELEMENTS = 4096
"""Elements that the order is told from, evenly from all that were reduced, and in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCase(CollectiveCase):
    """A sum on values of which each order and format gives other bits.

    Attributes:
        values: makes them; every repeat, of `ranks.repeat` and at least two, has the same ones.
    """

    def _observe(self, ranks: Ranks, dtype: torch.dtype, size: int) -> Observation:
        call = Call(
            exchange=Exchange(
                collective=self.collective,
                world_size=ranks.world_size,
                size=size,
                reduction=Reduction.SUM,
            ),
            values=self.values,
            dtype=dtype,
            ranks=ranks,
            rounds=True,
        )
        results: list[Tensor] = []
        message = ""
        try:
            results = [call.run() for _ in range(max(2, ranks.repeat))]
        except REFUSALS as error:
            message = refusal(error)
        checksums = tuple(_checksum(got) for got in results)
        blames = call.explain(results[0]) if results else ()
        order, formats = self._order(call, results[0]) if results and not blames else (None, ())
        return observed(
            call,
            case=self.name,
            kind=Kind.ORDER,
            message=message,
            blames=blames,
            checksums=checksums,
            replicated=self.collective is Collective.ALL_REDUCE,
            order=order,
            formats=formats,
        )

    def _order(self, call: Call, got: Tensor) -> tuple[Order | None, tuple[str, ...]]:
        fmt = supported_format(call.dtype)
        if fmt is None or not got.numel():
            return None, ()
        some = slice(None, None, max(1, got.numel() // _ELEMENTS))
        return recognise(got[some].to(torch.float64), call.contributions()[:, some], fmt)


def _checksum(got: Tensor) -> str:
    return hashlib.blake2b(bits_of(got).numpy().tobytes(), digest_size=8).hexdigest()
