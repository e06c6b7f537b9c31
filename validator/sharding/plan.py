"""Where every part of a logical tensor lies on the ranks, planned without tensors.

Along each dim a rank's tensor is made of runs: positions of its own and the logical positions that they are.
Its elements are all combinations of them. Ranks that hold the same runs of the same term hold copies;
positions in no run are padding.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from validator.capturing.records import Mesh, Placement
from validator.errors import LayoutError
from validator.sharding.runs import Run, covered, intervals

__all__ = [
    "Box",
    "Holding",
    "Part",
    "Plan",
    "coordinates",
    "plan_copies",
    "plan_placements",
    "plan_split",
    "plan_sum",
]

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A box of a logical tensor that one rank held: `start:stop` for each dim."""

    rank: int
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one rank holds.

    Attributes:
        rank: global rank.
        shape: of the rank's own tensor.
        dims: runs of each dim; none where its shard is empty, several where it is strided or permuted.
        term: which term of a sum over ranks it is; 0 where nothing is partial.
    """

    rank: int
    shape: tuple[int, ...]
    dims: tuple[tuple[Run, ...], ...]
    term: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether it holds no element."""
        return not all(self.dims)

    @property
    def is_padded(self) -> bool:
        """Whether some of the rank's own elements are none of the logical tensor."""
        return not self.is_empty and any(
            sum(len(run.local) for run in runs) < size
            for runs, size in zip(self.dims, self.shape, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the ranks' tensors make up a logical tensor of `shape`.

    Attributes:
        shape: of the logical tensor.
        holdings: one a rank, by rank.
        reduce: what completes the terms: `"sum"`, `"avg"`, `"max"`, `"min"`, or None where there is one term.

    Raises:
        LayoutError: a term lacks elements of the tensor, or has some that the tensor has not.
    """

    shape: tuple[int, ...]
    holdings: tuple[Holding, ...]
    reduce: str | None = None

    def __post_init__(self) -> None:
        """Check that nothing lies beyond the tensor, and that the totals add up."""
        for holding in self.holdings:
            for dim, (runs, size) in enumerate(zip(holding.dims, self.shape, strict=True)):
                beyond = max((run.logical[-1] for run in runs), default=0)
                if beyond >= size and not holding.is_empty:
                    raise LayoutError(
                        f"rank {holding.rank} holds position {beyond} of dim {dim}, of {size} in a tensor "
                        f"{list(self.shape)}"
                    )
        total = prod(self.shape)
        for term in {holding.term for holding in self.holdings} or {0}:
            filled = [h.dims for h in self.holdings if h.term == term and not h.is_empty]
            held = covered(self.shape, filled)
            if held != total:
                ranks = [holding.rank for holding in self.holdings]
                raise LayoutError(
                    f"the ranks {ranks} hold {held} of the {total} elements of a tensor {list(self.shape)}"
                )

    @property
    def whole(self) -> Box:
        """The box of the whole tensor."""
        return tuple((0, size) for size in self.shape)

    @property
    def copies(self) -> tuple[tuple[int, ...], ...]:
        """Groups of ranks that hold the same elements of the same term in the same order, each by rank.

        A rank whose tensor is padded is alone: nothing says that padding is alike.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for holding in self.holdings:
            alone = holding.rank if holding.is_padded else None
            dims = () if holding.is_empty else holding.dims
            groups.setdefault((holding.term, holding.shape, dims, alone), []).append(holding.rank)
        return tuple(tuple(ranks) for ranks in groups.values())

    def parts(self, ranks: Collection[int]) -> tuple[Part, ...]:
        """Return the boxes that these ranks held, each as large as can be along the last dims."""
        return tuple(
            Part(rank=holding.rank, box=box)
            for holding in self.holdings
            if holding.rank in ranks
            for box in product(*map(intervals, holding.dims))
        )

    def shard_of(self, rank: int) -> Box | None:
        """Return the only box that a rank held, or None if it held everything, nothing, or several boxes."""
        boxes = [part.box for part in self.parts((rank,))]
        return boxes[0] if len(boxes) == 1 and boxes[0] != self.whole else None


def plan_copies(shape: Sequence[int], *, ranks: Iterable[int]) -> Plan:
    """Plan a tensor that every rank holds whole."""
    return Plan(shape=tuple(shape), holdings=tuple(_full(rank, tuple(shape)) for rank in sorted(ranks)))


def plan_sum(shape: Sequence[int], *, ranks: Iterable[int], reduce: str = "sum") -> Plan:
    """Plan a tensor of which every rank holds one term."""
    holdings = tuple(_full(rank, tuple(shape), term) for term, rank in enumerate(sorted(ranks)))
    return Plan(shape=tuple(shape), holdings=holdings, reduce=reduce)


def plan_split(shape: Sequence[int], *, dim: int, sizes: Mapping[int, int]) -> Plan:
    """Plan a tensor that is split along `dim` into contiguous shards of these sizes, in rank order."""
    shape, start, holdings = tuple(shape), 0, []
    for rank in sorted(sizes):
        stop = start + sizes[rank]
        intervals = [[(start, stop)] if d == dim else [(0, size)] for d, size in enumerate(shape)]
        holdings.append(_holding(rank, intervals))
        start = stop
    return Plan(shape=shape, holdings=tuple(holdings))


def plan_placements(
    shape: Sequence[int], *, placements: Sequence[Placement], mesh: Mesh, ranks: Collection[int]
) -> Plan:
    """Plan a DTensor of global `shape`: mesh axes shard it from left to right, as torch.chunk does.

    Args:
        shape: of the logical tensor.
        placements: one a mesh axis; a negative dim counts from the end.
        mesh: its ranks, row-major.
        ranks: those whose tensors are at hand; ranks outside of the mesh hold nothing.

    Raises:
        LayoutError: a dim is out of range, partials of several reductions are mixed, or shards are missing.
    """
    reduces = {placement.reduce for placement in placements if placement.kind == "partial"}
    if len(reduces) > 1:
        raise LayoutError(f"one tensor is partial in several ways: {sorted(map(str, reduces))}")
    holdings = []
    for position, rank in enumerate(mesh.ranks):
        if rank not in ranks:
            continue
        intervals = [[(0, size)] for size in shape]
        term = 0
        for coordinate, size, placement in zip(
            coordinates(position, mesh.shape), mesh.shape, placements, strict=True
        ):
            if placement.kind == "partial":
                term = term * size + coordinate
            elif placement.kind == "shard":
                dim = _dim(placement, len(shape))
                intervals[dim] = _shard(intervals[dim], placement.stride, size, coordinate)
        holdings.append(_holding(rank, intervals, term))
    holdings.sort(key=lambda holding: holding.rank)
    return Plan(shape=tuple(shape), holdings=tuple(holdings), reduce=next(iter(reduces), None))


def coordinates(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return where the rank at `position` of a row-major mesh stands along each axis."""
    found: list[int] = []
    for size in reversed(shape):
        position, coordinate = divmod(position, size)
        found.insert(0, coordinate)
    return tuple(found)


def _dim(placement: Placement, ndim: int) -> int:
    dim = placement.dim
    if dim is None or not -ndim <= dim < ndim:
        raise LayoutError(f"shard({dim}) of a tensor with {ndim} dims")
    return dim % ndim


def _shard(intervals: list[tuple[int, int]], stride: int, size: int, index: int) -> list[tuple[int, int]]:
    """Cut into `stride` pieces, each piece into `size` chunks, and keep chunk `index` of each piece."""
    length = sum(stop - start for start, stop in intervals)
    kept: list[tuple[int, int]] = []
    for piece in range(stride):
        piece_start, piece_stop = _chunk(length, stride, piece)
        start, stop = _chunk(piece_stop - piece_start, size, index)
        for interval in _slice(intervals, piece_start + start, piece_start + stop):
            if kept and kept[-1][1] == interval[0]:
                kept[-1] = (kept[-1][0], interval[1])
            else:
                kept.append(interval)
    return kept


def _chunk(length: int, chunks: int, index: int) -> tuple[int, int]:
    """Return `start, stop` as torch.chunk cuts: equal sizes rounded up, the last ones shorter or empty."""
    size = -(-length // chunks)
    return min(size * index, length), min(size * (index + 1), length)


def _slice(intervals: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """Return positions `start:stop` of the intervals laid end to end."""
    taken, offset = [], 0
    for first, last in intervals:
        low, high = max(start - offset, 0), min(stop - offset, last - first)
        if low < high:
            taken.append((first + low, first + high))
        offset += last - first
    return taken


def _holding(rank: int, intervals: Sequence[Sequence[tuple[int, int]]], term: int = 0) -> Holding:
    """Lay the intervals of each dim end to end."""
    dims, shape = [], []
    for dim in intervals:
        offset, runs = 0, []
        for start, stop in dim:
            if stop > start:
                runs.append(Run(local=range(offset, offset + stop - start), logical=range(start, stop)))
            offset += stop - start
        dims.append(tuple(runs))
        shape.append(offset)
    return Holding(rank=rank, shape=tuple(shape), dims=tuple(dims), term=term)


def _full(rank: int, shape: tuple[int, ...], term: int = 0) -> Holding:
    return _holding(rank, [[(0, size)] for size in shape], term)
