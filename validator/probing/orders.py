"""Find the order and the format of a sum from its bits.

Adding is commutative, so an order is a binary tree whose leaves are ranks. Up to five ranks every tree is
tried (105 of them), above that the usual ones. A ring adds each chunk from another rank on: no single
tree explains all elements, but few runs of elements have one fold each.

Shape legend: N = ranks, n = elements, K = orders tried.
"""

import itertools
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from validator.numerics.formats import FORMATS, Format
from validator.numerics.rounding import round_nearest

from .records import Order, OrderKind

__all__ = ["recognise"]

Tree = int | tuple["Tree", "Tree"]

_MOST_FOR_ALL_TREES = 5
_FEWEST_PER_RUN = 16
"""Elements that a chunk of a ring has on average at least: some fold explains single elements by chance."""
_UNKNOWN = Order(kind=OrderKind.UNKNOWN, text="none of those tried")


def recognise(got: Tensor, parts_N: Tensor, fmt: Format) -> tuple[Order, tuple[str, ...]]:
    """Say how a sum was made.

    Args:
        got: `[n]` float64, the sums.
        parts_N: `[N, n]` float64, what was added.
        fmt: the format that contributions and sums are stored in.

    Returns:
        The order, and the names of the formats in which adding so, then rounding once, gives the same bits.
        That of storage stands for rounding each sum. None is named where no order that was tried gives them.
    """
    found: Order | None = None
    formats = []
    for inner in _inner_formats(fmt):
        order = _explained(got, parts_N, fmt, inner)
        if order is not None:
            found = order if found is None or found.kind is OrderKind.HIDDEN else found
            formats.append(inner.name)
            if order.kind is not OrderKind.HIDDEN:
                break
    return found or _UNKNOWN, tuple(formats)


def _inner_formats(fmt: Format) -> list[Format]:
    wider = [FORMATS[name] for name in ("float32", "float64") if FORMATS[name].precision > fmt.precision]
    return [fmt, *wider]


def _explained(got: Tensor, parts_N: Tensor, fmt: Format, inner: Format) -> Order | None:
    size = len(parts_N)
    trees = _trees(size)
    fits_K = torch.stack([_equal(round_nearest(_sum(tree, parts_N, inner), fmt), got) for tree in trees])
    whole = [tree for tree, fits in zip(trees, fits_K, strict=True) if bool(fits.all())]
    if len(whole) > 1 or (whole and size == 2):
        text = "two ranks have one order" if size == 2 else f"{len(whole)} orders give the same bits"
        return Order(kind=OrderKind.HIDDEN, text=text)
    if whole:
        return _named(whole[0], size)
    for step in (1, -1):
        folds = [_canonical(_fold(start, step, size)) for start in range(size)]
        fits = torch.stack([fits_K[trees.index(fold)] for fold in folds])
        runs = _runs(fits)
        if runs is not None and runs * _FEWEST_PER_RUN <= got.numel():
            way = "upwards" if step > 0 else "downwards"
            return Order(kind=OrderKind.RING, step=step, text=f"ring, {way}, in {runs} chunks")
    return None


def _runs(fits_K: Tensor) -> int | None:
    """Return the fewest runs of elements that one row each explains; None where some element has none."""
    if not bool(fits_K.any(0).all()):
        return None
    runs, at, size = 0, 0, fits_K.shape[1]
    # For each row and element, the next element that it doesn't explain.
    positions = torch.arange(size).expand_as(fits_K).masked_fill(fits_K, size)
    ends = positions.flip(1).cummin(1).values.flip(1)
    while at < size:
        at = int(ends[:, at].max())
        runs += 1
    return runs


def _sum(tree: Tree, parts_N: Tensor, inner: Format) -> Tensor:
    if isinstance(tree, int):
        return parts_N[tree]
    left, right = tree
    return round_nearest(_sum(left, parts_N, inner) + _sum(right, parts_N, inner), inner)


def _equal(left: Tensor, right: Tensor) -> Tensor:
    return (left == right) | (left.isnan() & right.isnan())


def _named(tree: Tree, size: int) -> Order:
    for step, start in itertools.product((1, -1), range(size)):
        if tree == _canonical(_fold(start, step, size)):
            names = [str((start + step * hop) % size) for hop in range(size)]
            return Order(
                kind=OrderKind.FOLD,
                start=start,
                step=step,
                text=f"one after the other: {', '.join(names)}",
            )
    return Order(kind=OrderKind.TREE, text=f"tree {_text(tree)}")


def _text(tree: Tree) -> str:
    return str(tree) if isinstance(tree, int) else f"({_text(tree[0])} + {_text(tree[1])})"


@cache
def _trees(size: int) -> list[Tree]:
    if size <= _MOST_FOR_ALL_TREES:
        return _all_trees(tuple(range(size)))
    folds = [_fold(start, step, size) for step in (1, -1) for start in range(size)]
    usual = [*folds, _halving(range(size)), _doubling(range(size))]
    return list(dict.fromkeys(map(_canonical, usual)))


def _all_trees(ranks: tuple[int, ...]) -> list[Tree]:
    """Return every binary tree over ranks: (2n-3)!! of them."""
    if len(ranks) == 1:
        return [ranks[0]]
    first, rest = ranks[0], ranks[1:]
    trees: list[Tree] = []
    for count in range(len(rest)):
        for beside in itertools.combinations(rest, count):
            others = tuple(rank for rank in rest if rank not in beside)
            trees += [
                _canonical((left, right))
                for left in _all_trees((first, *beside))
                for right in _all_trees(others)
            ]
    return trees


def _fold(start: int, step: int, size: int) -> Tree:
    tree: Tree = start
    for hop in range(1, size):
        tree = (tree, (start + step * hop) % size)
    return tree


def _halving(ranks: Sequence[int]) -> Tree:
    """Add neighbours first, then pairs: (0 + 1) + (2 + 3)."""
    if len(ranks) == 1:
        return ranks[0]
    middle = (len(ranks) + 1) // 2
    return _halving(ranks[:middle]), _halving(ranks[middle:])


def _doubling(ranks: Sequence[int]) -> Tree:
    """Add those half the ranks apart first: (0 + 2) + (1 + 3)."""
    if len(ranks) == 1:
        return ranks[0]
    return _doubling(ranks[::2]), _doubling(ranks[1::2])


def _canonical(tree: Tree) -> Tree:
    """Put the side with the lowest rank first, so that equal orders are equal."""
    if isinstance(tree, int):
        return tree
    left, right = _canonical(tree[0]), _canonical(tree[1])
    return (left, right) if _lowest(left) < _lowest(right) else (right, left)


def _lowest(tree: Tree) -> int:
    return tree if isinstance(tree, int) else min(_lowest(tree[0]), _lowest(tree[1]))
