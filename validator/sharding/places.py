"""Where the positions of a rank's own dim are in the logical dim, by the steps of the layout line.

Shape legend: U = units of a segment, which no cut divides (elements, heads, groups), W = elements of a unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from validator.sharding.grammar import Dim, Order, Split, pointed

__all__ = ["Axes", "places_of"]

Places = npt.NDArray[np.int64]
"""Logical positions, -1 for padding."""
Axes = Mapping[str, tuple[int, int]]
"""A rank's coordinate along each mesh axis, and the axis's size."""


def places_of(dim: Dim, size: int, *, axes: Axes, text: str) -> Places:
    """Return the logical position of each of a rank's own positions along a dim.

    Args:
        dim: as it was read.
        size: of the logical dim.
        axes: where the rank stands.
        text: the line, for messages.

    Returns:
        `[local size]`, -1 where there is padding.

    Raises:
        LayoutError: pieces don't fit the size.
    """
    return _flat(_Placer(axes=axes, text=text).segments(dim, size))


def _flat(segments: Sequence[Places]) -> Places:
    return np.concatenate([segment.reshape(-1) for segment in segments])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placer:
    """Takes the steps of a line on one rank. A dim is a list of segments `[U, W]`, each cut by itself."""

    axes: Axes
    text: str

    def segments(self, dim: Dim, size: int) -> list[Places]:
        if not dim.parts:
            # Inside a group a written size is a number of units, and cuts go between them.
            found = [np.arange(size).reshape(dim.size if dim.size and size else size, -1 if size else 1)]
        elif dim.is_joined:
            found, start = [], 0
            for part, length in zip(dim.parts, self._joined_sizes(dim, size), strict=True):
                pieces = self.segments(part, length)
                found += [np.where(piece < 0, -1, piece + start) for piece in pieces]
                start += length
        else:
            found = self._nested(dim, size)
        for step in dim.steps:
            found = self._cut(found, step) if isinstance(step, Split) else self._order(found, step, dim)
        return found

    def _nested(self, dim: Dim, size: int) -> list[Places]:
        """Nest the parts of a group: a unit is one of the first part's with all of the others inside."""
        sizes = self._nested_sizes(dim, size)
        inner, rest = np.zeros(1, dtype=np.int64), 1
        for part, length in zip(reversed(dim.parts[1:]), reversed(sizes[1:]), strict=True):
            outer = _flat(self.segments(part, length))
            inner, rest = _crossed(outer[:, None], inner[None, :], rest).reshape(-1), rest * length
        outer_segments = self.segments(dim.parts[0], sizes[0])
        return [
            _crossed(segment[:, :, None], inner[None, None, :], rest).reshape(
                len(segment), segment.shape[1] * len(inner)
            )
            for segment in outer_segments
        ]

    def _joined_sizes(self, dim: Dim, size: int) -> list[int]:
        written = [_weight(part) for part in dim.parts]
        if any(written) and None in written:
            lacking = dim.parts[written.index(None)]
            raise self._error(lacking.at, "its size is not written, but that of another piece is")
        shares = [weight or 1 for weight in written]
        if size % sum(shares):
            stated = " + ".join(map(str, shares))
            raise self._error(dim.at, f"{size} elements can't be cut into {stated} equal parts")
        return [share * size // sum(shares) for share in shares]

    def _nested_sizes(self, dim: Dim, size: int) -> list[int]:
        unknown = [part for part in dim.parts if part.size is None]
        if len(unknown) > 1:
            raise self._error(unknown[0].at, "one dim at most has no size; write (heads=8 dim)")
        known = prod(part.size for part in dim.parts if part.size is not None)
        if size % known or (not unknown and known != size):
            raise self._error(dim.at, f"{size} elements can't be cut into {known}")
        return [size // known if part.size is None else part.size for part in dim.parts]

    def _order(self, segments: list[Places], order: Order, dim: Dim) -> list[Places]:
        match order.word:
            case "":
                return self._listed(segments, order)
            case "pad":
                flat, multiple = _flat(segments), order.number or 1
                return [np.append(flat, np.full(-len(flat) % multiple, -1)).reshape(-1, 1)]
            case "zigzag":
                flat, ranks = _flat(segments).reshape(-1, 1), order.number or 1
                return [np.concatenate([_zigzag(flat, ranks, rank) for rank in range(ranks)])]
            case "per_kv_group":
                if not dim.is_joined or None in map(_weight, dim.parts):
                    raise self._error(order.at, "it takes the numbers of heads: (q=8|k=2|v=2):per_kv_group")
                groups = min(map(len, segments))
            case _:
                groups = self._blocks(segments, order, order.number or 1)
        if len(segments) < 2:
            raise self._error(order.at, f"{order.word} is an order of pieces: (a|b):{order.word}")
        for segment in segments:
            if segment.size % (groups or segment.size + 1):
                raise self._error(order.at, f"{segment.size} elements can't be cut into {groups} blocks")
        return [np.concatenate([s.reshape(groups, s.size // max(groups, 1)) for s in segments], axis=1)]

    def _blocks(self, segments: list[Places], order: Order, width: int) -> int:
        """Return how many blocks of `width` units each segment has."""
        lengths = {len(segment) for segment in segments}
        if len(lengths) > 1:
            stated = " and ".join(map(str, sorted(lengths)))
            raise self._error(order.at, f"pieces of {stated} can't alternate")
        (length,) = lengths
        if length % width:
            raise self._error(order.at, f"{length} can't be cut into blocks of {width}")
        return length // width

    def _listed(self, segments: list[Places], order: Order) -> list[Places]:
        count = max(order.places) + 1
        if len(segments) > 1:
            if count != len(segments):
                raise self._error(order.at, f"the order is of {count} pieces, and there are {len(segments)}")
            return [segments[place] for place in order.places]
        (segment,) = segments
        if len(segment) % count:
            raise self._error(order.at, f"{len(segment)} can't be cut into {count} blocks")
        blocks = np.split(segment, count)
        return [np.concatenate([blocks[place] for place in order.places])]

    def _cut(self, segments: list[Places], split: Split) -> list[Places]:
        index, size = self.axes[split.axis]
        places = split.order.places
        if places and len(places) != size:
            raise self._error(split.order.at, f"{len(places)} shards are listed for {size} ranks")
        if size % split.sharers:
            raise self._error(split.at, f"{size} ranks can't be cut into groups of {split.sharers}")
        if places:
            shards, index = max(places) + 1, places[index]
        else:
            shards, index = size // split.sharers, index // split.sharers
        if split.shares and len(split.shares) != shards:
            raise self._error(split.at, f"{len(split.shares)} sizes for {shards} shards")
        return [self._shard(segment, split, shards, index) for segment in segments]

    def _shard(self, segment: Places, split: Split, shards: int, index: int) -> Places:
        units = np.arange(len(segment))
        if split.shares:
            total = max(sum(split.shares), 1)
            if len(segment) % total:
                raise self._error(split.at, f"{len(segment)} can't be cut into {total} equal parts")
            bounds = np.cumsum([0, *split.shares]) * len(segment) // total
            units = units[bounds[index] : bounds[index + 1]]
        elif split.order.word == "zigzag":
            return _zigzag(segment, shards, index)
        elif split.order.word == "interleaved":
            units = units[units // (split.order.number or 1) % shards == index]
        else:
            return _chunk(segment, shards, index)
        return segment[units]

    def _error(self, at: int, why: str) -> Exception:
        return pointed(self.text, at, f"layout does not fit: {why}")


def _weight(dim: Dim) -> int | None:
    """Return the relative size that is written of a piece: its own, or of what is in it."""
    if dim.size is not None or not dim.parts:
        return dim.size
    weights = [_weight(part) for part in dim.parts]
    known = [weight for weight in weights if weight is not None]
    if dim.is_joined:
        return sum(known) if len(known) == len(weights) else None
    return prod(known) if known else None


def _crossed(outer: Places, inner: Places, rest: int) -> Places:
    return np.where((outer < 0) | (inner < 0), -1, outer * rest + inner)


def _chunk(segment: Places, chunks: int, index: int) -> Places:
    """Cut as torch.chunk does: equal sizes rounded up, the last ones shorter or empty."""
    size = -(-len(segment) // chunks)
    return segment[size * index : size * (index + 1)]


def _zigzag(segment: Places, ranks: int, rank: int) -> Places:
    """Cut into two chunks a rank, of which it holds one from the start and one from the end."""
    return np.concatenate([_chunk(segment, 2 * ranks, i) for i in (rank, 2 * ranks - 1 - rank)])
