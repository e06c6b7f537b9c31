"""Which tokens each rank has, where tokens are split over all ranks.

Shape legend: B = batch, S = tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
    """

    order: str
    batch: int
    tokens: int
    places: tuple[tuple[int, ...], ...] = ()

    def plan(self, shapes: Mapping[int, _Shape], whole: _Shape) -> Plan | None:
        """Plan a tensor of which each rank has its own tokens; None where that does not explain the shapes.

        Args:
            shapes: of each rank's tensor.
            whole: of the logical tensor: S is one of its dims, or sequences and tokens are one dim, B * S.
        """
        dim = self._token_dim(shapes, whole)
        if dim is None:
            return None
        try:
            plan = self._listed(shapes, whole, dim) if self.places else self._ordered(shapes, whole, dim)
        except LayoutError:
            return None
        return plan if {h.rank: h.shape for h in plan.holdings} == dict(shapes) else None

    def _ordered(self, shapes: Mapping[int, _Shape], whole: _Shape, dim: int) -> Plan:
        split = f"s[cp:{self.order}]"
        if whole[dim] != self.tokens:
            split = f"(b={self.batch} {split})"
        line = " ".join(split if d == dim else "_" for d in range(len(whole)))
        return parse_layout(line).sides["output"].plan(whole, shapes)

    def _listed(self, shapes: Mapping[int, _Shape], whole: _Shape, dim: int) -> Plan:
        starts = np.arange(0, whole[dim], self.tokens)[:, None]
        holdings = []
        for rank, places in zip(sorted(shapes), self.places, strict=False):
            held = [np.arange(size) for size in whole]
            held[dim] = (starts + np.asarray(places)).reshape(-1)
            own = tuple(map(len, held))
            holdings.append(Holding(rank=rank, shape=own, dims=tuple(map(runs_of, held))))
        return Plan(shape=whole, holdings=tuple(holdings))

    def _token_dim(self, shapes: Mapping[int, _Shape], whole: _Shape) -> int | None:
        """Return the only dim that is split, if it is the one of the tokens."""
        if any(len(shape) != len(whole) for shape in shapes.values()):
            return None
        split = {d for shape in shapes.values() for d, size in enumerate(whole) if shape[d] != size}
        is_flat = whole[:1] == (self.batch * self.tokens,)
        # A first dim of this size may be the batch.
        first = int(self.batch == self.tokens and len(whole) > 1)
        dim = 0 if is_flat else next((d for d in range(first, len(whole)) if whole[d] == self.tokens), None)
        return dim if split == {dim} else None
