"""Find a smallest set of items that explains a value, by runs of subsets.

The value of a set is whatever a run with these items shows. Nothing is assumed of it: neither that it grows
with the set, nor that contributions add up.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, comb
from typing import Generic, TypeVar

__all__ = ["Evaluations", "Member", "SmallestSet", "find_smallest"]

T = TypeVar("T", bound=Hashable)

SPARE_RUNS = 64
"""So many runs may be spent on proving that no smaller set explains the value, or on finding one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Generic[T]):
    """What an item of a set contributes.

    Attributes:
        item: the item.
        alone: the value of the item by itself.
        lost_from_set: by how much the set's value falls without it.
        lost_from_whole: by how much the value of all items falls without it.
    """

    item: T
    alone: float
    lost_from_set: float
    lost_from_whole: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestSet(Generic[T]):
    """A set that explains a value, of which no member can be left out.

    Attributes:
        members: largest contribution alone first.
        value: of the set.
        limit: the least value that explains.
        whole: the value of all items.
        none: the value of no item.
        rest: the value of all other items.
        is_smallest: whether all smaller sets were tried or are known not to reach the limit. Otherwise only
            the sets that lack one member were.
    """

    members: tuple[Member[T], ...]
    value: float
    limit: float
    whole: float
    none: float
    rest: float
    is_smallest: bool


class Evaluations(Generic[T]):
    """The values of sets, each run once.

    Args:
        evaluate: runs a set.
    """

    def __init__(self, evaluate: Callable[[frozenset[T]], float]) -> None:
        self._evaluate = evaluate
        self._values: dict[frozenset[T], float] = {}

    def __call__(self, items: Iterable[T]) -> float:
        """Return the value of a set."""
        key = frozenset(items)
        if key not in self._values:
            self._values[key] = self._evaluate(key)
        return self._values[key]

    @property
    def runs(self) -> int:
        """How many sets were run."""
        return len(self._values)


def find_smallest(
    items: Sequence[T], values: Evaluations[T], *, limit: float, spare_runs: int = SPARE_RUNS
) -> SmallestSet[T] | None:
    """Find a set with a value of at least `limit`, no member of which can be left out.

    Items are ranked by their value alone and taken in this order until the limit is reached, which is a
    smallest set where contributions add up. Then all that can be left out is, by halves, quarters and so on,
    down to single items (delta debugging), which finds items that only act together. Last, smaller sets
    are tried where there are few enough.

    Args:
        items: all items.
        values: runs a set of them.
        limit: what the set's value must reach.
        spare_runs: runs that may be spent on smaller sets.

    Returns:
        The set; an empty one where the value of no item reaches the limit, None where that of all does not.

    Source:
        Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28 (2002).
    """
    if not values(items) >= limit:
        return None
    if values(()) >= limit:
        return _described((), items, values, limit=limit, is_smallest=True)
    ranked = sorted(items, key=lambda item: values([item]), reverse=True)
    chosen = _needed(_first_enough(ranked, values, limit), values, limit)
    chosen, is_smallest = _smaller(chosen, ranked, values, limit, spare_runs)
    return _described(chosen, items, values, limit=limit, is_smallest=is_smallest)


def _first_enough(ranked: Sequence[T], values: Evaluations[T], limit: float) -> Sequence[T]:
    return next(ranked[:count] for count in range(1, len(ranked) + 1) if values(ranked[:count]) >= limit)


def _needed(chosen: Sequence[T], values: Evaluations[T], limit: float) -> Sequence[T]:
    """Leave out whatever can be, until each item that is left is needed."""
    pieces = 2
    while len(chosen) > 1:
        size = ceil(len(chosen) / pieces)
        starts = range(0, len(chosen), size)
        rests = ([*chosen[:start], *chosen[start + size :]] for start in reversed(starts))
        smaller = next((rest for rest in rests if rest and values(rest) >= limit), None)
        if smaller is not None:
            chosen, pieces = smaller, max(pieces - 1, 2)
        elif size == 1:
            break
        else:
            pieces = min(2 * pieces, len(chosen))
    return chosen


def _smaller(
    chosen: Sequence[T], ranked: Sequence[T], values: Evaluations[T], limit: float, spare_runs: int
) -> tuple[Sequence[T], bool]:
    """Try all smaller sets, the smallest first, as long as there are few enough."""
    for count in range(2, len(chosen)):  # single items are known
        spare_runs -= comb(len(ranked), count)
        if spare_runs < 0:
            return chosen, False
        for tried in combinations(ranked, count):
            if values(tried) >= limit:
                return tried, True
    return chosen, True


def _described(
    chosen: Sequence[T], items: Collection[T], values: Evaluations[T], *, limit: float, is_smallest: bool
) -> SmallestSet[T]:
    whole, value = values(items), values(chosen)
    members = [
        Member(
            item=item,
            alone=values([item]),
            lost_from_set=_fall(value, values(other for other in chosen if other != item)),
            lost_from_whole=_fall(whole, values(other for other in items if other != item)),
        )
        for item in chosen
    ]
    return SmallestSet(
        members=tuple(sorted(members, key=lambda member: member.alone, reverse=True)),
        value=value,
        limit=limit,
        whole=whole,
        none=values(()),
        rest=values(item for item in items if item not in set(chosen)),
        is_smallest=is_smallest,
    )


def _fall(before: float, after: float) -> float:
    """Return `before - after`, 0 where both are infinite."""
    return 0.0 if before == after else before - after
