"""One call of a collective on the ranks: make every rank's input, run it, and explain what came."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from validator.numerics.formats import FORMATS, Format

from .answers import accumulated_slack, reduced
from .blame import Held, Received, blame_moved, blame_reduced
from .draws import Draw, Memory, Ranks, Values, arrange, bits_of, poisoned
from .exchanges import Exchange, Reduction, communicate, synchronize
from .records import Blame

__all__ = ["REFUSALS", "Call", "refusal", "supported_format"]

REFUSALS = (RuntimeError, ValueError, TypeError, NotImplementedError)
"""What a backend raises that does not take a call."""


def supported_format(dtype: torch.dtype) -> Format | None:
    """Return the format of a floating dtype; None for integers and bool."""
    return next((fmt for fmt in FORMATS.values() if fmt.dtype == dtype), None)


def refusal(error: Exception) -> str:
    """Return why a backend refused a call: the first line of what it said."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


@lru_cache(maxsize=16)
def _made(values: Values, draw: Draw) -> Tensor:
    return values(draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective with its inputs.

    Attributes:
        rounds: sums of these values may round, and are right within what any order may lose.
    """

    exchange: Exchange
    values: Values
    dtype: torch.dtype
    ranks: Ranks
    memory: Memory = Memory.CONTIGUOUS
    rounds: bool = False

    def input_of(self, rank: int) -> Tensor:
        """Return the input of any rank, `[n]` on the CPU; it is shared, so don't write into it."""
        return _made(
            self.values,
            Draw(
                rank=rank,
                world_size=self.exchange.world_size,
                size=self.exchange.input_size(rank),
                dtype=self.dtype,
                turn=self.exchange.turn,
            ),
        )

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Return this rank's input and the buffer for the result, which is the input where it is in place."""
        exchange, me, device = self.exchange, self.ranks.rank, self.ranks.device
        if exchange.in_place and (exchange.reduction is not None or me == exchange.root):
            sent = received = arrange(self.input_of(me).to(device), self.memory)
        elif exchange.in_place:
            sent = received = arrange(poisoned(exchange.size, self.dtype).to(device), self.memory)
        else:
            sent = arrange(self.input_of(me).to(device), self.memory)
            size = exchange.output_size(me)
            received = poisoned(size, self.dtype).view(-1, *sent.shape[1:]).to(device)
        return sent, received

    def run(self) -> Tensor:
        """Call the collective and wait for it; return what this rank got, `[n]` on the CPU."""
        sent, received = self.buffers()
        communicate(self.exchange, self.ranks.rank, sent, received)()
        synchronize(self.ranks.device)
        return received.cpu().reshape(-1)

    def start(self, sent: Tensor, received: Tensor) -> Callable[[], None]:
        """Start the collective and return what waits for it."""
        return communicate(self.exchange, self.ranks.rank, sent, received, asynchronous=True)

    def contributions(self) -> Tensor:
        """Return what all ranks add to what this one gets, `[N, n]` float64."""
        (chunk,) = self.exchange.chunks(self.ranks.rank)
        parts = [self.input_of(rank)[chunk.start : chunk.stop] for rank in range(self.ranks.world_size)]
        return torch.stack(parts).to(torch.float64)

    def explain(self, got: Tensor, before: "Call | None" = None) -> tuple[Blame, ...]:
        """Explain what is wrong with what this rank got, `[n]`; `before` is the call before this one."""
        if self.exchange.reduction is not None:
            blame = self._explain_reduced(got, self.exchange.reduction, before)
            return () if blame is None else (blame,)
        return self._explain_moved(got, before)

    def _explain_reduced(self, got: Tensor, reduction: Reduction, before: "Call | None") -> Blame | None:
        parts_N = self.contributions()
        size = len(parts_N)
        fmt = supported_format(self.dtype)
        answer = reduced(parts_N, reduction, world_size=size)
        slack = torch.zeros_like(answer)
        # A division by no power of two rounds, and may come before the sum.
        divides = reduction is Reduction.AVG and size & (size - 1) != 0
        if fmt is not None and (self.rounds or divides):
            share = size if reduction is Reduction.AVG else 1
            slack = accumulated_slack(parts_N, fmt.unit_roundoff) / share
        old = None if before is None else reduced(before.contributions(), reduction, world_size=size)
        # In place the buffer was not filled, so its bits prove nothing.
        filled = poisoned(1, self.dtype)
        unwritten = bits_of(got) == bits_of(filled) if not self.exchange.in_place else got != got
        return blame_reduced(
            Received(
                got=got.to(torch.float64),
                answer=answer,
                slack=slack,
                parts=parts_N,
                reduction=reduction,
                rank=self.ranks.rank,
                unwritten=unwritten & ~answer.isnan(),
                before=old,
                format=fmt,
            ),
            self.exchange.turn,
        )

    def _explain_moved(self, got: Tensor, before: "Call | None") -> tuple[Blame, ...]:
        exchange, me = self.exchange, self.ranks.rank
        bits, poison = bits_of(got), int(bits_of(poisoned(1, self.dtype)))
        held = None
        blames, at = [], 0
        for index, chunk in enumerate(exchange.chunks(me)):
            source = chunk.source
            if source is None:
                raise ValueError(f"{exchange} reduces")
            right = bits_of(self.input_of(source)[chunk.start : chunk.stop])
            received = bits[at : at + len(right)]
            at += len(right)
            if torch.equal(received, right):
                continue
            old = None
            if before is not None:
                last = before.exchange.chunks(me)[index]
                if last.source is not None:
                    old = bits_of(before.input_of(last.source)[last.start : last.stop])
            held = self._held() if held is None else held
            blame = blame_moved(
                got=received,
                right=right,
                source=source,
                poison=poison,
                before=old,
                held=held,
                dtype=self.dtype,
                turn=exchange.turn,
            )
            blames += [] if blame is None else [blame]
        return tuple(blames)

    def _held(self) -> list[Held]:
        """Return every part that a rank could have sent to a rank."""
        exchange = self.exchange
        parts = {}
        for receiver in range(exchange.world_size):
            for chunk in exchange.chunks(receiver):
                parts[chunk] = receiver
        return [
            Held(
                what=f"what rank {receiver} should get from rank {chunk.source}"
                if exchange.input_size(chunk.source or 0) > chunk.stop - chunk.start
                else f"what rank {chunk.source} holds",
                bits=bits_of(self.input_of(chunk.source or 0)[chunk.start : chunk.stop]),
            )
            for chunk, receiver in parts.items()
        ] + [
            # Who only receives could send what it holds as well.
            Held(what=f"what rank {rank} holds", bits=bits_of(self.input_of(rank)))
            for rank in range(exchange.world_size)
        ]
