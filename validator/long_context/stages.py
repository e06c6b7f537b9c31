"""Which layers of a model the cache of each rank is of, where the stages of a pipeline have some each."""

from collections.abc import Sequence
from dataclasses import replace

from validator.long_context.driving import Drive

__all__ = ["placed"]


def placed(drives: Sequence[Drive], *, layers: int) -> tuple[Drive, ...]:
    """Number the layers of ranks' caches as the whole model does.

    A stage that keeps the whole model's numbers leaves the layers of others empty. One that numbers its own
    from 0 has those behind the layers of the stage before it; the ranks of a stage are neighbours.

    Args:
        drives: one run, rank by rank.
        layers: of the reference's cache; 0 where that is not known.

    Returns:
        The runs, with None in readings for layers that other stages have; as they are where every rank has
        all layers, or where it can't be told which it has.
    """
    filled = [_filled(drive) for drive in drives]
    if not layers or {number for numbers in filled for number in numbers} == set(range(layers)):
        others = [set().union(*filled[:rank], *filled[rank + 1 :]) for rank in range(len(drives))]
        return tuple(_without(drive, others[rank] - {*filled[rank]}) for rank, drive in enumerate(drives))
    counts = [len(numbers) for numbers in filled]
    copies, left = divmod(sum(counts), layers)
    stages = [counts[start : start + copies] for start in range(0, len(counts), copies)] if copies else []
    if left or not stages or any(len(set(stage)) > 1 for stage in stages):
        return tuple(drives)
    starts = [sum(stage[0] for stage in stages[:number]) for number in range(len(stages))]
    return tuple(
        _moved(drive, start=starts[rank // copies], count=counts[rank]) for rank, drive in enumerate(drives)
    )


def _filled(drive: Drive) -> list[int]:
    """Return which layers of a cache hold something in the end; a state that is no list of tokens does."""
    last = drive.readings[-1].layers if drive.readings else ()
    return [number for number, layer in enumerate(last) if layer is not None and layer.held != 0]


def _without(drive: Drive, empty: set[int]) -> Drive:
    """Leave out layers by their numbers."""
    readings = tuple(
        replace(
            reading,
            layers=tuple(None if number in empty else layer for number, layer in enumerate(reading.layers)),
        )
        for reading in drive.readings
    )
    return replace(drive, readings=readings)


def _moved(drive: Drive, *, start: int, count: int) -> Drive:
    """Number the first layers from `start` on."""
    readings = tuple(
        replace(reading, layers=(*(None,) * start, *reading.layers[:count])) for reading in drive.readings
    )
    return replace(drive, readings=readings)
