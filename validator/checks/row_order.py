"""Rows that two implementations keep in different orders: tokens sorted by expert, or experts by token.

Inside of a mixture of experts a row is a token for one expert, and what row it is means nothing. A child
that both sides call once for all of them (an activation) is given the same rows in another order, and
what it returns is put back by its caller. The rows tell which is which by their values.

Shape legend: N = rows, D = channels.
"""

from collections.abc import Iterator

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

__all__ = ["row_order"]

FAR = 0.5
"""A row that is off by this much of its own length is another row."""

NEAR = 2.0**-6
CLEARLY = 4.0
"""Rows that are off by more than rounding leaves of 16 bits may have been exchanged with rows much like them:
where that makes all that moved fit so many times better."""

MOST_ROWS = 1 << 13
"""Of more rows, the distances of all from all are too many."""


def row_order(exact: Tensor, cand: Tensor) -> Tensor | None:
    """Return which row of the candidate each row of the oracle is, where they are in another order.

    Args:
        exact: `[N, D]` float64, the oracle's rows.
        cand: `[N, D]` float64, the candidate's.

    Returns:
        `[N]` int64, a permutation; None where the rows are in one order, or some have no counterpart. A row
        that is wrong by less than half of its length finds its place, and is judged there.
    """
    if exact.dim() != 2 or exact.shape != cand.shape or not 1 < len(exact) <= MOST_ROWS:
        return None
    if not bool(exact.isfinite().all() & cand.isfinite().all()):
        return None
    length = exact.norm(dim=1)
    in_place = (cand - exact).norm(dim=1)
    moved = (in_place > NEAR * length).nonzero()[:, 0]
    if not len(moved):
        return None
    distance = torch.cdist(exact[moved], cand[moved])
    if bool((distance.amin(1) > FAR * length[moved]).any()):
        return None
    rows, places = (torch.from_numpy(x) for x in linear_sum_assignment(distance.numpy()))
    if bool((distance[rows, places] > FAR * length[moved]).any()):
        return None
    order = torch.arange(len(exact))
    for cycle in _cycles(places):
        old, new = moved[cycle], moved[places[cycle]]
        is_far = bool((in_place[old] > FAR * length[old]).any())
        if is_far or CLEARLY * distance[cycle, places[cycle]].sum() < in_place[old].sum():
            order[old] = new
    return None if torch.equal(order, torch.arange(len(exact))) else order


def _cycles(places: Tensor) -> Iterator[Tensor]:
    """Yield the rows that changed places with one another."""
    left = {row: place for row, place in enumerate(places.tolist()) if row != place}
    while left:
        row, place = left.popitem()
        cycle = [row]
        while place in left:
            cycle.append(place)
            place = left.pop(place)
        yield torch.tensor(cycle)
