"""Put a logical tensor together block by block, so that neither it nor a rank's part is ever whole in memory.

That works where the ranks' parts follow one another in every row: copies, and shards along one dim.

Shape legend: G = rows that are put together at once, W = elements of a row, or of a rank's part of it.
"""

from collections.abc import Callable, Collection, Iterator
from math import prod

import torch

from validator.sharding.plan import Holding, Plan

__all__ = ["BlockReader", "can_stream", "stream"]

_BLOCK = 1 << 19


def can_stream(plan: Plan) -> bool:
    """Say whether `stream` can carry out a plan: nothing partial, and shards along one dim at most."""
    return plan.reduce is None and _arranged(plan, ()) is not None


def stream(
    plan: Plan, blocks: Callable[[int], Iterator[torch.Tensor]], *, prefer: Collection[int] = ()
) -> Iterator[torch.Tensor]:
    """Yield the elements of a logical tensor in row-major order, in flat tensors, at least one.

    Args:
        plan: where every part lies; one for which `can_stream` holds.
        blocks: yields the elements of a rank's own tensor in row-major order, in flat tensors.
        prefer: ranks whose copies are taken where several ranks hold the same; else the lowest rank's.
    """
    arranged = _arranged(plan, prefer)
    if arranged is None:
        raise ValueError(f"{plan} has no part that follows another in every row")
    dim, holdings = arranged
    if len(holdings) == 1:
        yield from blocks(holdings[0].rank)
        return
    rows = prod(plan.shape[:dim])
    readers = [(BlockReader(blocks(h.rank)), prod(h.shape[dim:])) for h in holdings]
    at_once = max(1, _BLOCK // max(1, prod(plan.shape[dim:])))
    if at_once > 1:
        for start in range(0, rows, at_once):
            g = min(at_once, rows - start)
            yield torch.cat([reader.take(g * w).view(g, w) for reader, w in readers], dim=1).reshape(-1)
    else:
        for _ in range(rows):
            for reader, w in readers:
                yield from reader.parts(w)
    for reader, _ in readers:
        reader.finish()


class BlockReader:
    """Takes as many elements as are asked for from blocks of any lengths."""

    def __init__(self, blocks: Iterator[torch.Tensor]) -> None:
        self._blocks = blocks
        self._left = next(blocks)

    def take(self, count: int) -> torch.Tensor:
        """Return the next `count` elements in one tensor."""
        parts = list(self.parts(count))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def parts(self, count: int) -> Iterator[torch.Tensor]:
        """Yield the next `count` elements in one tensor or more."""
        while True:
            part = self._left[:count]
            self._left = self._left[count:]
            count -= part.numel()
            yield part
            if count == 0:
                return
            self._left = next(self._blocks)

    def finish(self) -> None:
        """Read to the end, where a checksum is compared."""
        for _ in self._blocks:
            pass


def _arranged(plan: Plan, prefer: Collection[int]) -> tuple[int, list[Holding]] | None:
    """Return the sharded dim and one holding a shard, in order; None if the parts don't lie like that."""
    of_rank = {holding.rank: holding for holding in plan.holdings}
    chosen = [of_rank[min(ranks, key=lambda rank: (rank not in prefer, rank))] for ranks in plan.copies]
    filled = [holding for holding in chosen if not holding.is_empty]
    if not filled:
        return (0, chosen[:1]) if chosen[0].shape == plan.shape else None
    if not all(_is_box(holding) for holding in filled):
        return None
    if len(filled) == 1:
        return 0, filled
    sharded = {
        dim
        for holding in filled
        for dim, (size, whole) in enumerate(zip(holding.shape, plan.shape, strict=True))
        if size != whole
    }
    if len(sharded) != 1:
        return None
    (dim,) = sharded
    if sum(holding.shape[dim] for holding in filled) != plan.shape[dim]:
        return None
    return dim, sorted(filled, key=lambda h: h.dims[dim][0].logical.start)


def _is_box(holding: Holding) -> bool:
    """Tell whether a rank's own tensor is one box of the logical one, in the same order."""
    return all(
        len(runs) == 1 and runs[0].local == range(size) and runs[0].logical.step == 1
        for runs, size in zip(holding.dims, holding.shape, strict=True)
    )
