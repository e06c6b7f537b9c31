"""Slices of an edge along one dim: whether an order makes them the oracle's, and which is nearest to which.

Shape legend: N = size of the dim, M = elements of one of its slices.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["CLEARLY", "MINIMUM_MOVED", "Slices"]

Places = npt.NDArray[np.int64]

PROBED = 64
"""So many slices refute an order."""
MATCHED = 4096
"""Up to so many slices are matched by their values with each other."""
MINIMUM_MOVED = 8
"""Fewer elements in another place are no evidence."""
MINIMUM_KNOWN = 0.75
"""Padding leaves so many slices."""
MINIMUM_SHARE = 0.5
"""Of the slices that an order moves, so many must have been outside of the band where they were."""
CLEARLY = 16.0
"""An order must make the squared error of what it moves so many times smaller, and what it moves must be so
many times larger than what the band allows, squared: else any order would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Slices of an edge along one dim, of which some elements are compared.

    Attributes:
        exact, cand, tolerance: `[N, M]` float64.
        usable: `[N, M]` boolean.
    """

    exact: Tensor
    cand: Tensor
    tolerance: Tensor
    usable: Tensor

    def columns(self, count: int) -> "Slices":
        """Return so many of the elements of each slice, evenly spaced."""
        chosen = torch.linspace(0, self.exact.shape[1] - 1, min(count, self.exact.shape[1])).long()
        return Slices(
            exact=self.exact[:, chosen],
            cand=self.cand[:, chosen],
            tolerance=self.tolerance[:, chosen],
            usable=self.usable[:, chosen],
        )

    def agrees(self, order: Places, part: "Slices") -> bool:
        """Tell whether the candidate's slices are the oracle's in an order, and evidently so.

        Args:
            order: `[N]` which of the oracle's each is, -1 for none.
            part: some columns, by which most orders are refuted.
        """
        moved = np.flatnonzero((order >= 0) & (order != np.arange(len(order))))
        if not len(moved) or int((order >= 0).sum()) < MINIMUM_KNOWN * len(order):
            return False
        probes = moved[np.linspace(0, len(moved) - 1, min(PROBED, len(moved))).astype(np.int64)]
        if not part.holds(probes, order):
            return False
        return self.holds(np.flatnonzero(order >= 0), order) and self._is_evident(moved, order)

    def holds(self, places: Places, order: Places) -> bool:
        """Tell whether all elements of the slices at some places agree in an order."""
        to, from_ = torch.from_numpy(places), torch.from_numpy(order[places])
        compared = self.usable[to] & self.usable[from_]
        error = (self.cand[to] - self.exact[from_]).abs()
        return bool(compared.any()) and not bool((compared & (error > self.tolerance[from_])).any())

    def _is_evident(self, moved: Places, order: Places) -> bool:
        to, from_ = torch.from_numpy(moved), torch.from_numpy(order[moved])
        compared = self.usable[to] & self.usable[from_]
        if int(compared.sum()) < MINIMUM_MOVED:
            return False
        before = torch.where(compared, self.cand[to] - self.exact[to], 0.0)
        after = torch.where(compared, self.cand[to] - self.exact[from_], 0.0)
        outside = (before.abs() > self.tolerance[to]).any(1)
        if float(outside[compared.any(1)].double().mean()) < MINIMUM_SHARE:
            return False
        source, known = self.exact[from_], order[order >= 0]
        if len(np.unique(known)) < len(known):
            # A constant that occurs again and again, such as a limit, repeats no slice.
            source = source - source.mean(1, keepdim=True)
        size = torch.where(compared, source, 0.0).square().sum()
        allowed = torch.where(compared, self.tolerance[from_], 0.0).square().sum()
        error = before.square().sum()
        return bool(error > CLEARLY * after.square().sum()) and bool(
            torch.minimum(size, error) > CLEARLY * allowed
        )

    def may_be_permuted(self) -> bool:
        """Tell whether the values of each column could be the oracle's in any order.

        Sorting brings no two vectors further apart than their largest difference.
        """
        if not bool(self.usable.all()):
            return True
        apart = (self.cand.sort(0).values - self.exact.sort(0).values).abs()
        return bool((apart.amax(0) <= self.tolerance.amax(0)).all())

    def matched(self) -> Places | None:
        """Return which of the oracle's slices each of the candidate's is nearest to; None where too many."""
        if not 2 <= len(self.exact) <= MATCHED:
            return None
        exact, cand = (torch.where(self.usable, values, 0.0) for values in (self.exact, self.cand))
        scale = exact.square().mean(0).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
        nearest = _nearest(cand / scale, exact / scale)
        if len(np.unique(nearest)) < len(nearest):
            # Slices that are alike in the oracle are taken in turn.
            alike = _nearest(exact / scale, exact / scale)
            places = {label: np.flatnonzero(alike == label).tolist() for label in np.unique(alike).tolist()}
            turned = [places[label].pop(0) if places[label] else -1 for label in alike[nearest].tolist()]
            if -1 not in turned:
                return np.array(turned, dtype=np.int64)
        return nearest


def _nearest(of: Tensor, among: Tensor) -> Places:
    """Return the index of the nearest row, block by block."""
    squares = among.square().sum(1)
    found = [(squares - 2 * block @ among.T).argmin(1) for block in of.split(512)]
    return torch.cat(found).numpy()
