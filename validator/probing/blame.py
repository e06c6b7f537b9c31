"""Tell from what a rank received what went wrong, and with whose contribution.

A reduction is explained by reducing other contributions than the right ones; what was only moved, by
other bits that somebody holds. The simplest explanation that holds for every wrong element is given.

Shape legend: N = ranks, n = elements received.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.numerics.formats import FORMATS, Format
from validator.numerics.rounding import round_nearest

from .answers import accumulated_slack, reduced
from .exchanges import Reduction
from .records import Blame, Fault

__all__ = ["Held", "Received", "blame_moved", "blame_reduced"]

_MOST_SUBSETS = 8
"""Ranks up to which every subset is tried."""
_FEWEST_NARROW = 8
"""Values that must all fit a narrower format before it is named: one does by chance, 1 in 2^(bits fewer)."""
_NARROWER = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a rank got of a reduction, and all that it should have come from.

    Attributes:
        got: `[n]` float64.
        answer: `[n]` float64.
        slack: `[n]` float64; how far from the answer is right.
        parts: `[N, n]` float64 contributions.
        unwritten: `[n]` bool; elements that still have the bits that the buffer was filled with.
        before: `[n]` float64 answer of the call before, or None.
        format: of the elements; None for integers.
    """

    got: Tensor
    answer: Tensor
    slack: Tensor
    parts: Tensor
    reduction: Reduction
    rank: int
    unwritten: Tensor
    before: Tensor | None
    format: Format | None

    def differs(self, other: Tensor) -> Tensor:
        """Say where what was got is not `other`, `[n]` bool; two NaNs agree, as do two equal infinities."""
        near = (self.got == other) | ((self.got - other).abs() <= self.slack)
        return ~(near | (self.got.isnan() & other.isnan()))


def blame_reduced(received: Received, turn: int) -> Blame | None:
    """Explain what is wrong with the result of a reduction, the `turn`-th call; None where nothing is."""
    wrong = received.differs(received.answer).nonzero().flatten()
    if not len(wrong):
        return None
    fault, source, detail = next(_reduced_faults(received, wrong))
    return _blame(fault, source, detail, wrong, turn, right=received.answer, got=received.got)


def _reduced_faults(received: Received, wrong: Tensor) -> Iterator[tuple[Fault, int | None, str]]:
    size = len(received.parts)
    others = [[q for q in range(size) if q != rank] for rank in range(size)]

    def explains(other: Tensor) -> bool:
        return not bool(received.differs(other)[wrong].any())

    def of(ranks: Sequence[int]) -> Tensor:
        return reduced(received.parts[list(ranks)], received.reduction, world_size=size)

    if bool(received.unwritten[wrong].all()):
        yield Fault.NOT_WRITTEN, None, "the buffer still holds what it was filled with"
    for rank in range(size):
        if size > 1 and explains(of(others[rank])):
            yield Fault.MISSING, rank, ""
    for rank in range(size):
        if explains(of([*range(size), rank])):
            yield Fault.DOUBLED, rank, ""
    if explains(of([received.rank])) or explains(received.parts[received.rank]):
        yield Fault.NOT_REDUCED, None, "it is the rank's own contribution"
    if received.before is not None and explains(received.before):
        yield Fault.STALE, None, "it is the answer of the call before"
    if size <= _MOST_SUBSETS:
        for count in range(size - 1):
            for ranks in itertools.combinations(range(size), count):
                if explains(of(ranks)):
                    yield Fault.SUBSET, None, f"it holds those of ranks {list(ranks)} alone"
    moved = _shift(received.got, received.answer, wrong)
    if moved is not None:
        yield Fault.MOVED, None, f"element {int(wrong[0])} holds what belongs at {int(wrong[0]) + moved}"
    yield from _narrowed(received, wrong)
    yield from _scaled(received, wrong)
    contributing = (received.parts[:, wrong] != 0).any(1).nonzero().flatten().tolist()
    yield Fault.CORRUPT, contributing[0] if len(contributing) == 1 else None, ""


def _narrowed(received: Received, wrong: Tensor) -> Iterator[tuple[Fault, int | None, str]]:
    if received.format is None or len(wrong) < _FEWEST_NARROW:
        return
    for fmt in _narrower(received.format):
        for rank, part in enumerate(received.parts):
            # One rank's contribution may have been rounded before it was sent.
            parts_N = received.parts.clone()
            parts_N[rank] = round_nearest(part, fmt)
            other = reduced(parts_N, received.reduction, world_size=len(parts_N))
            if not bool(received.differs(other)[wrong].any()):
                yield Fault.NARROWED, rank, f"it was rounded to {fmt.name}"
    for fmt in reversed(_narrower(received.format)):
        got = received.got[wrong]
        room = accumulated_slack(received.parts, fmt.unit_roundoff)[wrong]
        if bool(((got - received.answer[wrong]).abs() <= room).all()) and bool(
            (round_nearest(got, fmt) == got).all()
        ):
            yield Fault.NARROWED, None, f"reduced in {fmt.name}"


def _scaled(received: Received, wrong: Tensor) -> Iterator[tuple[Fault, int | None, str]]:
    if received.reduction not in (Reduction.SUM, Reduction.AVG):
        return
    difference = (received.got - received.answer)[wrong]
    share = len(received.parts) if received.reduction is Reduction.AVG else 1
    # The scaled contribution and the sums behind it round, in the worst case each time as much as here.
    roundoff = 0.0 if received.format is None else (len(received.parts) + 1) * received.format.unit_roundoff
    for rank, part in enumerate(received.parts[:, wrong]):
        factors = 1 + difference * share / part
        room = (received.slack + roundoff * received.got.abs())[wrong] * share / part.abs()
        is_one = (factors - factors[0]).abs() <= room + room[0]
        # Within the room any part would do.
        if len(wrong) > 1 and bool(is_one.all()) and abs(float(factors[0]) - 1) > 8 * float(room.max()):
            yield Fault.SCALED, rank, f"by {float(factors[0]):.6g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A run of bits that a rank holds: `bits` is `[m]` int64."""

    what: str
    bits: Tensor


def blame_moved(
    *,
    got: Tensor,
    right: Tensor,
    source: int,
    poison: int,
    before: Tensor | None,
    held: Sequence[Held],
    dtype: torch.dtype,
    turn: int,
) -> Blame | None:
    """Explain what is wrong with a chunk that was to be moved unchanged; None where nothing is.

    Args:
        got: `[n]` int64 bit patterns.
        right: `[n]` int64, those of the source.
        source: the rank that the chunk comes from.
        poison: bit pattern that the buffer was filled with.
        before: bit patterns of the same chunk in the call before, or None.
        held: what else could have been sent instead.
        dtype: of the elements.
        turn: number of the call.
    """
    wrong = (got != right).nonzero().flatten()
    if not len(wrong):
        return None
    fault, detail = next(_moved_faults(got, right, wrong, poison, before, held, dtype))
    return _blame(fault, source, detail, wrong, turn, right=_values(right, dtype), got=_values(got, dtype))


def _moved_faults(
    got: Tensor,
    right: Tensor,
    wrong: Tensor,
    poison: int,
    before: Tensor | None,
    held: Sequence[Held],
    dtype: torch.dtype,
) -> Iterator[tuple[Fault, str]]:
    first, last = int(wrong[0]), int(wrong[-1])
    if bool((got[wrong] == poison).all()):
        if first and last == len(got) - 1 and len(wrong) == last - first + 1:
            yield Fault.TRUNCATED, f"only {first} of {len(got)} elements arrived"
        yield Fault.NOT_WRITTEN, "the buffer still holds what it was filled with"
    if before is not None and len(before) == len(got) and torch.equal(got[wrong], before[wrong]):
        yield Fault.STALE, "it is what the call before brought"
    for other in held:
        if len(other.bits) == len(got) and torch.equal(got[wrong], other.bits[wrong]):
            yield Fault.MOVED, f"it is {other.what}"
    moved = _shift(got, right, wrong)
    if moved is not None:
        yield Fault.MOVED, f"element {first} holds what belongs at {first + moved}"
    if dtype in {fmt.dtype for fmt in FORMATS.values()} and len(wrong) >= _FEWEST_NARROW:
        fmt = next(fmt for fmt in FORMATS.values() if fmt.dtype == dtype)
        values = _values(right, dtype).to(torch.float64)
        for narrow in _narrower(fmt):
            rounded = round_nearest(values, narrow).to(dtype)
            same = rounded.view_as(values)[wrong].to(torch.float64) == _values(got, dtype)[wrong]
            if bool((same | values[wrong].isnan()).all()):
                yield Fault.NARROWED, f"it was rounded to {narrow.name}"
    yield Fault.CORRUPT, ""


def _shift(got: Tensor, right: Tensor, wrong: Tensor) -> int | None:
    """Return how far on the wrong elements' values belong, where that is one distance for all."""
    first = int(wrong[0])
    run = wrong[: int(_run_length(wrong))]
    if len(run) < 2:
        return None
    for at in (right == got[first]).nonzero().flatten().tolist():
        moved = at - first
        inside = run[(run + moved >= 0) & (run + moved < len(right))]
        if moved and len(inside) > len(run) // 2 and torch.equal(got[inside], right[inside + moved]):
            return int(moved)
    return None


def _run_length(wrong: Tensor) -> int:
    gaps = (wrong[1:] - wrong[:-1] != 1).nonzero().flatten()
    return int(gaps[0]) + 1 if len(gaps) else len(wrong)


def _narrower(fmt: Format) -> list[Format]:
    """Return the formats of less precision, widest first."""
    narrower = [FORMATS[name] for name in _NARROWER if FORMATS[name].precision < fmt.precision]
    return sorted(narrower, key=lambda other: -other.precision)


def _values(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `[n]` bit patterns as the float64 values that they stand for."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return bits.to(integer).view(dtype).to(torch.float64)


def _blame(
    fault: Fault, source: int | None, detail: str, wrong: Tensor, turn: int, *, right: Tensor, got: Tensor
) -> Blame:
    first = int(wrong[0])
    return Blame(
        fault=fault,
        source=source,
        turn=turn,
        first=first,
        last=int(wrong[-1]),
        count=len(wrong),
        size=len(right),
        right=float(right[first]),
        got=float(got[first]),
        detail=detail,
    )
