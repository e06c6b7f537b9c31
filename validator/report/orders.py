"""One order out of several, such as those of runs that each lack some edges."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

__all__ = ["merged"]

Item = TypeVar("Item", bound=Hashable)


def merged(orders: Iterable[Iterable[Item]]) -> list[Item]:
    """Return each item once, in the first order; what another adds comes right after all before it there.

    Args:
        orders: each of the items that it has. Where two of them disagree the earlier counts.
    """
    whole: list[Item] = []
    for order in orders:
        places = {item: place for place, item in enumerate(whole)}
        added: dict[int, list[Item]] = {}
        at = -1
        for item in dict.fromkeys(order):
            if item in places:
                at = max(at, places[item])
            else:
                added.setdefault(at, []).append(item)
        whole = [*added.get(-1, ()), *_interleaved(whole, added)]
    return whole


def _interleaved(whole: Sequence[Item], added: dict[int, list[Item]]) -> Iterable[Item]:
    for place, item in enumerate(whole):
        yield item
        yield from added.get(place, ())
