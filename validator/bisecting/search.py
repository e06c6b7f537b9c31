"""Where to look next: which blocks to look into, in what order, until one is guilty.

Nothing here knows of models or captures: blocks are names in execution order.

Blocks that something points at are looked into first, each with the block before it. A hint is only a hint:
what is smaller than the noise shows at no boundary, and one beyond the noise may lie behind the guilty block.
Only what the edges inside say counts, so that a wrong hint costs a look and no more. Then all other blocks
are looked into in execution order, a few at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Reason", "Side", "Visit", "hinted", "is_monotone", "search", "visits"]


class Side(StrEnum):
    """Where a boundary lies: within the noise that rounding carries there, or beyond it.

    `unclear`: beyond it, but behind a choice that near ties decide otherwise in a healthy run.
    `unknown`: nothing is known of its noise.
    """

    INSIDE = "inside"
    OUTSIDE = "outside"
    UNCLEAR = "unclear"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a group of blocks is looked into."""

    HINT = "hint"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Blocks to look into together, in execution order."""

    blocks: tuple[str, ...]
    reason: Reason


def hinted(sides: Sequence[tuple[str, Side]]) -> str | None:
    """Return the block that the boundaries point at: of the first one outside, else of the first unclear.

    Args:
        sides: block and side of each boundary, in execution order; a block that is called several times has
            several.
    """
    for wanted in (Side.OUTSIDE, Side.UNCLEAR):
        for block, side in sides:
            if side is wanted:
                return block
    return None


def is_monotone(sides: Sequence[tuple[str, Side]]) -> bool:
    """Say whether no boundary is inside again after one that is outside."""
    known = [side for _, side in sides if side in (Side.INSIDE, Side.OUTSIDE)]
    return Side.INSIDE not in known[known.index(Side.OUTSIDE) :] if Side.OUTSIDE in known else True


def visits(
    blocks: Sequence[str], hints: Iterable[str], *, size_bytes: Mapping[str, int], limit_bytes: int
) -> Iterator[Visit]:
    """Yield which blocks to look into, group after group, until whoever asks has found what it looks for.

    Args:
        blocks: in execution order, each once.
        hints: blocks to begin with, the likeliest first; the next is asked for when it is needed.
        size_bytes: what a capture of each takes.
        limit_bytes: groups of the sweep take no more, unless one block alone does.

    Yields:
        Each block exactly once, in the end.
    """
    left = list(blocks)
    for hint in hints:
        if hint not in left:
            continue
        at = blocks.index(hint)
        first = tuple(block for block in blocks[max(at - 1, 0) : at + 1] if block in left)
        yield Visit(blocks=first, reason=Reason.HINT)
        left = [block for block in left if block not in first]
    while left:
        count, taken = 1, size_bytes[left[0]]
        while count < len(left) and taken + size_bytes[left[count]] <= limit_bytes:
            taken += size_bytes[left[count]]
            count += 1
        yield Visit(blocks=tuple(left[:count]), reason=Reason.SWEEP)
        del left[:count]


def search(visits: Iterator[Visit], look: Callable[[Visit], bool]) -> Visit | None:
    """Look into group after group; return the first that is guilty, or None."""
    return next((visit for visit in visits if look(visit)), None)
