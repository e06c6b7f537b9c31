"""Where the parts of a fused module lie in what one rank holds.

Unless the target's `layout` says otherwise, a rank holds a block of every part, one after the other. What it
says of the outputs' last dim holds for the rows of weight and bias too.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from validator.align.fusions import Fusion, part_sizes
from validator.capturing.records import Placement, TensorMeta
from validator.sharding.layout import Declared, Layout, TensorLayout
from validator.sharding.plan import Plan, plan_placements

__all__ = ["Blocks"]


class Blocks:
    """The places of a fused module's parts.

    Args:
        fusion: the module and its parts.
        ranks: all that have it.
        layout: what the target declares of the module, or None.
    """

    def __init__(self, fusion: Fusion, *, ranks: Collection[int], layout: Layout | None = None) -> None:
        self.fusion = fusion
        self._ranks = ranks
        self._layout = layout or Layout()
        self._ends = list(pairwise(accumulate(fusion.sizes, initial=0)))

    def parts(self, rank: int, width: int, leaf: str = "") -> list[Sequence[int]] | None:
        """Return the indices of each part along the dim that holds all of them, or None where they don't fit.

        Args:
            rank: whose tensor it is.
            width: its size along that dim.
            leaf: of a parameter, whose rows they are; `""` for outputs, whose last dim they are.

        Raises:
            LayoutError: what is declared does not fit the parts.
        """
        declared = self._declared(leaf)
        if declared is None:
            sizes = part_sizes(self.fusion.sizes, width, len(self._ranks))
            if sizes is None:
                return None
            return [range(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        return self._placed(declared.plan((sum(self.fusion.sizes),), self._ranks), rank, width)

    def rows(self, rank: int, meta: TensorMeta, leaf: str, width: int | None) -> list[Sequence[int]] | None:
        """Return the rows of each part in a parameter, or None where that can't be told.

        Args:
            rank: whose it is.
            meta: of the parameter.
            leaf: of its name.
            width: of what the module returned on this rank, or None where it did not run.
        """
        if not meta.shape:
            return None
        if width in (None, meta.shape[0]):
            return self.parts(rank, meta.shape[0], leaf)
        # The rows were gathered before they were used: each rank stores some of the whole, in order.
        total = sum(self.fusion.sizes)
        if width != total or meta.placements is None or meta.mesh is None:
            return None
        whole = Placement(kind="replicate")
        placements = [p if p.kind == "shard" and p.dim == 0 else whole for p in meta.placements]
        plan = plan_placements((total,), placements=placements, mesh=meta.mesh, ranks=meta.mesh.ranks)
        return self._placed(plan, rank, meta.shape[0])

    def layouts(self) -> list[Layout]:
        """Return what is declared of each part: of its inputs that of the whole, of the rest its piece."""
        total = sum(self.fusion.sizes)
        layouts = []
        for start, _ in self._ends:
            sides = dict(self._layout.sides)
            for side, declared in sides.items():
                kind = side.partition(".")[0]
                if kind != "input":
                    dim = -1 if kind == "output" else 0
                    sides[side] = replace(declared, piece=(dim, start, total))
            layouts.append(Layout(sides=sides))
        return layouts

    def _placed(self, plan: Plan, rank: int, width: int) -> list[Sequence[int]] | None:
        """Return the indices of each part where a plan says which rank holds what of all parts."""
        (holding,) = (holding for holding in plan.holdings if holding.rank == rank)
        if holding.shape != (width,):
            return None
        places = {
            logical: own
            for run in holding.dims[0]
            for own, logical in zip(run.local, run.logical, strict=True)
        }
        return [[places[i] for i in range(start, stop) if i in places] for start, stop in self._ends]

    def _declared(self, leaf: str) -> Declared | None:
        """Return what is said of the one dim that holds the parts."""
        own = self._layout.of(leaf) if leaf else None
        declared = own or self._layout.of("output")
        if declared is None or not declared.layout.dims:
            return None
        dim = declared.layout.dims[0 if own else -1]
        return Declared(layout=TensorLayout(text=declared.layout.text, dims=(dim,)), mesh=declared.mesh)
