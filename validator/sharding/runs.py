"""Runs of a dim: positions of a rank's own tensor, and the logical ones that they are.

Runs have a step, so that an interleaved dim of any size takes as many as it has pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["Run", "covered", "intervals", "runs_of"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Positions along a dim of the rank's own tensor, and the logical ones that they are, one to one."""

    local: range
    logical: range


def runs_of(places: Indices) -> tuple[Run, ...]:
    """Return the runs of a dim.

    Args:
        places: `[local size]` logical position of each of the rank's own, -1 for padding.

    Returns:
        As few as the rank's order or the logical order gives: `0 4 1 5` are two, `0 1` and `4 5`.
    """
    local = np.flatnonzero(places >= 0)
    logical = places[local]
    order = np.argsort(logical, kind="stable")
    orders = [(local, logical), (local[order], logical[order])]
    moves = [np.stack([np.diff(own), np.diff(theirs)]) for own, theirs in orders]
    changes = [np.flatnonzero((move[:, 1:] != move[:, :-1]).any(0)) + 1 for move in moves]
    best = 0 if len(changes[0]) <= len(changes[1]) else 1
    return _steps(*orders[best], moves=moves[best], stops=np.append(changes[best], len(local) - 1))


def covered(shape: tuple[int, ...], held: Sequence[tuple[tuple[Run, ...], ...]]) -> int:
    """Count the elements of a tensor that are held at least once, those beyond it included.

    Args:
        shape: of the tensor.
        held: the runs of each dim, one or more, for each of those that hold some of it.
    """
    if not held:
        return 0
    counts: list[Indices] = []
    members: list[list[npt.NDArray[np.bool_]]] = []
    for dim, size in enumerate(shape):
        distinct = {dims[dim] for dims in held}
        masks = {runs: _mask(runs, size) for runs in distinct}
        labels = np.zeros(max(map(len, masks.values())), dtype=np.int64)
        for mask in masks.values():
            # Positions that the same holders have are alike.
            labels[: len(mask)] += mask * (labels.max(initial=0) + 1)
            labels = np.unique(labels, return_inverse=True)[1]
        _, first, count = np.unique(labels, return_index=True, return_counts=True)
        counts.append(count)
        padded = {runs: np.pad(mask, (0, len(labels) - len(mask))) for runs, mask in masks.items()}
        members.append([padded[dims[dim]][first] for dims in held])
    cells = np.zeros([len(count) for count in counts], dtype=bool)
    for of_holding in zip(*members, strict=True):
        cells[np.ix_(*of_holding)] = True
    total = cells.astype(np.int64)
    for count in counts:
        total = np.tensordot(count, total, axes=(0, 0))
    return int(total) if shape else 1


@lru_cache(maxsize=1024)
def intervals(runs: tuple[Run, ...]) -> tuple[tuple[int, int], ...]:
    """Return the logical positions of a dim as intervals `start, stop`."""
    if len(runs) == 1 and runs[0].logical.step == 1:
        return ((runs[0].logical.start, runs[0].logical.stop),)
    places = np.unique(np.concatenate([np.arange(0), *(np.asarray(run.logical) for run in runs)]))
    cuts = np.flatnonzero(np.diff(places) != 1)
    starts, stops = np.append(0, cuts + 1), np.append(cuts, len(places) - 1)
    if not len(places):
        return ()
    return tuple((int(a), int(b) + 1) for a, b in zip(places[starts], places[stops], strict=True))


def _steps(local: Indices, logical: Indices, *, moves: Indices, stops: Indices) -> tuple[Run, ...]:
    """Take as many positions as follow one another in even steps forward, then begin again."""
    runs, first = [], 0
    while first < len(local):
        last, steps = first, [1, 1]
        if first < len(local) - 1 and moves[:, first].min() > 0:
            last, steps = int(stops[np.searchsorted(stops, first, side="right")]), moves[:, first].tolist()
        of_local, of_logical = (
            range(int(values[first]), int(values[last]) + 1, step)
            for values, step in zip((local, logical), steps, strict=True)
        )
        runs.append(Run(local=of_local, logical=of_logical))
        first = last + 1
    return tuple(runs)


def _mask(runs: Sequence[Run], size: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(max([size, *(run.logical[-1] + 1 for run in runs)]), dtype=bool)
    for run in runs:
        mask[slice(run.logical.start, run.logical.stop, run.logical.step)] = True
    return mask
