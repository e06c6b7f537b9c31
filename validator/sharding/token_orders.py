"""Which tokens each rank has, where tokens are split over all ranks or along one axis of their mesh.

Along the other axes ranks hold copies, or parts of other dims or of their own tokens.

Shape legend: B = batch, S = tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from validator.capturing.records import Mesh
from validator.errors import LayoutError
from validator.sharding.layout import parse_layout
from validator.sharding.plan import Holding, Plan
from validator.sharding.runs import runs_of

__all__ = ["ORDERS", "TokenOrder"]

ORDERS = ("contiguous", "zigzag", "interleaved")
"""What is tried: runs of tokens, two chunks a rank (one from either end), or one token a rank in turn."""

_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOrder:
    """How a run's tokens are dealt to its ranks.

    Attributes:
        order: one of `ORDERS`, or `"listed"`.
        batch: B of the model's inputs.
        tokens: S of the model's inputs.
        places: of an order that is listed: the positions of each rank's tokens, by rank.
        mesh: sizes of the axes on which the ranks stand, row-major, or empty where they are one axis.
        axis: the one along which tokens are dealt.
    """

    order: str
    batch: int
    tokens: int
    places: tuple[tuple[int, ...], ...] = ()
    mesh: tuple[int, ...] = ()
    axis: int = 0

    def plans(self, shapes: Mapping[int, _Shape], whole: _Shape) -> list[Plan]:
        """Plan a tensor of which each place of the axis has its own tokens: all ways that explain the shapes.

        Args:
            shapes: of each rank's tensor.
            whole: of the logical tensor: S is one of its dims, or sequences and tokens are one dim, B * S.

        Returns:
            Different plans; several where the mesh's other axes may split other dims in several ways.
        """
        if any(len(shape) != len(whole) for shape in shapes.values()):
            return []
        split = {d for shape in shapes.values() for d, size in enumerate(whole) if shape[d] != size}
        found: list[Plan] = []
        for dim in self._token_dims(split, whole):
            plans = self._listed if self.places else self._ordered
            for plan in plans(shapes, whole, dim):
                if {h.rank: h.shape for h in plan.holdings} == dict(shapes) and plan not in found:
                    found.append(plan)
        return found

    def _ordered(self, shapes: Mapping[int, _Shape], whole: _Shape, dim: int) -> Iterator[Plan]:
        sizes = self.mesh if prod(self.mesh) == len(shapes) and self.mesh else (len(shapes),)
        if self.mesh and sizes != self.mesh and self.mesh[self.axis] != len(shapes):
            return
        axis = self.axis if sizes == self.mesh else 0
        names = tuple(f"axis{i}" for i in range(len(sizes)))
        mesh = Mesh(axes=names, shape=sizes, ranks=tuple(sorted(shapes)))
        others = [name for i, name in enumerate(names) if i != axis]
        is_flat = whole[dim] != self.tokens
        # Of one dim for sequences and tokens an axis may split either: the sequences are dim -1 here.
        choices = (None, *range(-1 if is_flat else 0, len(whole)))
        for chosen in product(choices, repeat=len(others)):
            pairs = list(zip(others, chosen, strict=True))
            cuts = {d: "".join(f"[{name}]" for name, of in pairs if of == d) for d in choices}
            tokens = f"s[{names[axis]}:{self.order}]{cuts[dim]}"
            if is_flat:
                tokens = f"(b={self.batch}{cuts[-1]} {tokens})"
            line = " ".join(tokens if d == dim else f"_{cuts[d]}" for d in range(len(whole)))
            try:
                yield parse_layout(line, mesh).sides["output"].plan(whole, shapes)
            except LayoutError:
                continue

    def _listed(self, shapes: Mapping[int, _Shape], whole: _Shape, dim: int) -> Iterator[Plan]:
        starts = np.arange(0, whole[dim], self.tokens)[:, None]
        holdings = []
        for rank, places in zip(sorted(shapes), self.places, strict=False):
            held = [np.arange(size) for size in whole]
            held[dim] = (starts + np.asarray(places)).reshape(-1)
            own = tuple(map(len, held))
            holdings.append(Holding(rank=rank, shape=own, dims=tuple(map(runs_of, held))))
        try:
            yield Plan(shape=whole, holdings=tuple(holdings))
        except LayoutError:
            return

    def _token_dims(self, split: set[int], whole: _Shape) -> list[int]:
        """Return the dims that are split and may be the one of the tokens."""
        if whole[:1] == (self.batch * self.tokens,) and 0 in split:
            return [0]
        # A first dim of this size may be the batch.
        first = int(self.batch == self.tokens and len(whole) > 1)
        dims = [d for d in range(first, len(whole)) if whole[d] == self.tokens]
        return [d for d in (dims if len(split) > 1 else dims[:1]) if d in split]
