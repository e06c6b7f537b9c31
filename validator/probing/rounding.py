"""Cases whose sums round: is a reduction deterministic, in which order and which format does it add?"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .calls import Call, refusal, supported_format
from .draws import Ranks, Values, bits_of
from .exchanges import Collective, Exchange, Reduction
from .orders import recognise
from .records import Kind, Observation, Order, Status

__all__ = ["OrderCase"]

_ELEMENTS = 4096
"""Elements that the order is told from, evenly from all that were reduced, and in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCase:
    """A sum on values of which each order and format gives other bits.

    Attributes:
        values: makes them; every repeat has the same ones.
    """

    name: str
    exposes: str
    collective: Collective
    values: Values
    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]

    def run(self, ranks: Ranks) -> Iterator[Observation]:
        """Run it on this rank, `ranks.repeat` times and at least twice, and give what came."""
        for dtype in self.dtypes:
            for size in self.sizes:
                yield self._observe(ranks, dtype, size)

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
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            message = refusal(error)
        checksums = tuple(_checksum(got) for got in results)
        blames = call.explain(results[0]) if results else ()
        order, formats = self._order(call, results[0]) if results and not blames else (None, ())
        return Observation(
            rank=ranks.rank,
            case=self.name,
            kind=Kind.ORDER,
            call=str(call.exchange),
            dtype=str(dtype).removeprefix("torch."),
            size=call.exchange.output_size(ranks.rank),
            status=Status.UNSUPPORTED if message else Status.WRONG if blames else Status.OK,
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
