"""Which ranks held an element of a logical tensor."""

from collections.abc import Iterable, Sequence

from validator.sharding.plan import Box, Part

__all__ = ["owner", "ranks_of"]


def owner(parts: Iterable[Part], index: Sequence[int]) -> int | None:
    """Return the only rank whose part holds the element at `index`, or None if several or none do."""
    ranks = {part.rank for part in parts if _holds(part.box, index)}
    return ranks.pop() if len(ranks) == 1 else None


def ranks_of(parts: Iterable[Part], indices: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the ranks, lowest first, whose parts hold at least one of the elements at `indices`."""
    wanted = list(indices)
    return tuple(sorted({part.rank for part in parts if any(_holds(part.box, index) for index in wanted)}))


def _holds(box: Box, index: Sequence[int]) -> bool:
    return all(start <= i < stop for (start, stop), i in zip(box, index, strict=True))
