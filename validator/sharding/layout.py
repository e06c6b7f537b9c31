"""The target's `layout`: how ranks hold tensors where that can neither be read nor inferred.

    mesh = {"dp": 2, "tp": 2}                                     # optional: axes of the ranks, row-major
    layout = {
        "model.layers.*": "output=b s[tp] h",                     # sequence parallel
        "*.self_attn.qkv_proj": "b s (q=8|k=2|v=2)[tp]",          # per-rank blocks q0 k0 v0, then q1 k1 v1
        "*.mlp.down_proj": "input=b s h[tp], output=b s h +tp",   # each rank holds a term of the sum
    }

A line names the dims of the reference's tensor in order, and says behind each how the ranks hold it:

    h[tp]                 cut along the mesh axis tp as torch.chunk does; axes that are not named hold copies
    h[tp=3|1]             cut in these proportions
    s[cp:zigzag]          two chunks a rank, one from the start and one from the end
    s[cp:interleaved]     one position a rank in turn; interleaved(64): 64 positions in turn
    h[tp:1,0]             rank 0 of the axis holds shard 1, rank 1 shard 0
    kv[tp/2]              two neighbouring ranks hold the same shard (more ranks than kv heads)
    (heads=8 dim)[tp]     nested dims: cut between heads
    (q=8|k=2|v=2)[tp]     one after the other, sizes in heads: each is cut by itself, between heads
    (gate|up)[tp]         of equal sizes where none is written
    (gate|up):1,0         the candidate has up first; `:0,2,1,0` on one dim is an order of equal blocks, which
                          may repeat (redundant experts)
    (gate|up):interleaved                  g0 u0 g1 u1 ...; interleaved(64): in blocks of 64
    (q=8|k=2|v=2):per_kv_group             for each k head its q heads, k and v
    s:zigzag(4)           whole, in the order that 4 ranks' zigzag parts have one after the other
    vocab:pad(64)[tp]     padded at its end to a multiple of 64, then cut; h[tp]:pad(64) is cut, then padded
    ... h +tp             any dims; ranks along tp hold terms of a sum

Steps are taken from left to right: `(gate|up):interleaved[tp]` cuts the interleaved rows, and
`(gate|up)[tp]:interleaved` interleaves what each rank has.
A side is `input`, `output` (the default), one of their tensors such as `input.hidden_states`, or a parameter
such as `weight`. What is said of all inputs or outputs holds for those with as many dims.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from validator.capturing.records import Mesh
from validator.errors import LayoutError
from validator.sharding.grammar import Dim, TensorLayout, pointed, read_line
from validator.sharding.places import places_of
from validator.sharding.plan import Holding, Plan, coordinates
from validator.sharding.runs import runs_of

__all__ = ["Declared", "Layout", "TensorLayout", "parse_layout", "plan_layout", "resolve_layouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """How ranks hold a tensor.

    Attributes:
        layout: what is declared.
        mesh: that the ranks stand on, or None for one axis with all of them.
        piece: where the layout is that of a tensor of which this one is a piece: `(dim, start, size)`, where
            it starts along the dim and how long the dim is. Ranks have their own of it in logical order.
    """

    layout: TensorLayout
    mesh: Mesh | None = None
    piece: tuple[int, int, int] | None = None

    def plan(self, shape: Sequence[int], ranks: Collection[int]) -> Plan:
        """Plan a tensor, as `plan_layout` does."""
        if self.piece is None:
            return plan_layout(shape, layout=self.layout, mesh=self.mesh, ranks=ranks)
        dim, start, size = self.piece
        around = list(shape)
        around[dim] = size
        plan = plan_layout(around, layout=self.layout, mesh=self.mesh, ranks=ranks)
        holdings = []
        for holding in plan.holdings:
            places = sorted(place - start for run in holding.dims[dim] for place in run.logical)
            own = np.array([place for place in places if 0 <= place < shape[dim]], dtype=np.int64)
            dims, local = list(holding.dims), list(holding.shape)
            dims[dim], local[dim] = runs_of(own), len(own)
            holdings.append(replace(holding, dims=tuple(dims), shape=tuple(local)))
        return Plan(shape=tuple(shape), holdings=tuple(holdings), reduce=plan.reduce)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a target declares of a module's tensors, by side."""

    sides: Mapping[str, Declared] = field(default_factory=dict)

    def of(self, side: str, path: str = "") -> Declared | None:
        """Return what is said of the tensor at a path of `input` or `output`, or of a parameter, or None."""
        return self.sides.get(f"{side}.{path}", self.sides.get(side))


def parse_layout(text: str, mesh: Mesh | None = None) -> Layout:
    """Read one value of `layout`.

    Args:
        text: the line.
        mesh: of all ranks, or None where each tensor is on one axis.

    Raises:
        LayoutError: it can't be read, or names an axis that the mesh lacks; the message points at the
            character. Or it names several axes, and there is no mesh.
    """
    sides = read_line(text)
    for layout in sides.values():
        _require_axes(layout, mesh)
    return Layout(sides={side: Declared(layout=layout, mesh=mesh) for side, layout in sides.items()})


def resolve_layouts(
    layout: Mapping[str, str],
    *,
    modules: Iterable[str],
    parameters: Collection[str],
    mesh: Mesh | None = None,
) -> dict[str, Layout]:
    """Return the layout of each candidate module that a pattern of `layout` matches; the last one holds.

    Args:
        layout: line by pattern.
        modules: the candidate's.
        parameters: the candidate's.
        mesh: as of `parse_layout`.

    Raises:
        LayoutError: a value can't be read, a pattern matches no module, or a side is no parameter of those it
            matches.
    """
    names = list(modules)
    resolved: dict[str, Layout] = {}
    for pattern, text in layout.items():
        parsed = parse_layout(text, mesh)
        regex = re.compile(".*".join(map(re.escape, pattern.split("*"))))
        matched = [name for name in names if regex.fullmatch(name)]
        if not matched:
            raise LayoutError(
                f"layout {pattern!r} matches no module of the candidate that ran; "
                f"its modules are {', '.join(names[:4])}, ..."
            )
        for side in parsed.sides:
            is_activation = side.partition(".")[0] in ("input", "output")
            if not is_activation and not any(f"{name}.{side}" in parameters for name in matched):
                raise LayoutError(
                    f"layout {pattern!r} speaks of {side!r}, which is neither input nor output, nor a "
                    f"parameter of {matched[0]}"
                )
        resolved |= dict.fromkeys(matched, parsed)
    return resolved


def plan_layout(
    shape: Sequence[int], *, layout: TensorLayout, mesh: Mesh | None, ranks: Collection[int]
) -> Plan:
    """Plan how ranks hold a tensor by what is declared of it.

    Args:
        shape: of the logical tensor.
        layout: what is declared.
        mesh: of all ranks; None where the only axis that the layout names is all of `ranks`.
        ranks: those whose tensors are at hand.

    Raises:
        LayoutError: it does not fit the shape, names an axis that the mesh lacks, or leaves elements out.
    """
    return _plan(tuple(shape), layout, layout.text, mesh, tuple(sorted(ranks)))


@lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...], layout: TensorLayout, text: str, mesh: Mesh | None, ranks: tuple[int, ...]
) -> Plan:
    dims = _dims(layout, shape)
    _require_axes(layout, mesh)
    mesh = mesh or Mesh(axes=(*layout.axes, "")[:1], shape=(len(ranks),), ranks=ranks)
    holdings = []
    for rank in ranks:
        if rank not in mesh.ranks:
            raise LayoutError(f"the mesh {dict(zip(mesh.axes, mesh.shape, strict=True))} has no rank {rank}")
        places = coordinates(mesh.ranks.index(rank), mesh.shape)
        axes = {axis: (place, size) for axis, place, size in zip(mesh.axes, places, mesh.shape, strict=True)}
        held = [places_of(dim, size, axes=axes, text=text) for dim, size in zip(dims, shape, strict=True)]
        term = 0
        for axis in layout.sums:
            place, size = axes[axis]
            term = term * size + place
        own = tuple(map(len, held))
        holdings.append(Holding(rank=rank, shape=own, dims=tuple(map(runs_of, held)), term=term))
    try:
        return Plan(shape=shape, holdings=tuple(holdings), reduce="sum" if layout.sums else None)
    except LayoutError as error:
        raise LayoutError(f"{error}, by the layout {text!r}") from None


def _dims(layout: TensorLayout, shape: tuple[int, ...]) -> list[Dim]:
    """Return one dim for each of a shape's.

    Raises:
        LayoutError: their numbers differ, or a size that is written is another.
    """
    dims = list(layout.dims)
    names = [dim.name for dim in dims]
    if "..." in names:
        at = names.index("...")
        dims[at : at + 1] = [Dim(name="_")] * (len(shape) - len(dims) + 1)
    if len(dims) != len(shape):
        raise LayoutError(
            f"layout does not fit: {len(layout.dims)} dims are written for a tensor {list(shape)}\n"
            f"  {layout.text}"
        )
    sizes: dict[str, int] = {}
    for dim, size in zip(dims, shape, strict=True):
        wanted = dim.size if dim.size is not None else sizes.get(dim.name, size)
        if wanted != size:
            raise pointed(
                layout.text, dim.at, f"layout does not fit: it is {size} in {list(shape)}, not {wanted}"
            )
        if dim.name not in ("", "_"):
            sizes[dim.name] = size
    return dims


def _require_axes(layout: TensorLayout, mesh: Mesh | None) -> None:
    if mesh is None and len(layout.axes) > 1:
        raise LayoutError(
            f"layout {layout.text!r} names the axes {' and '.join(layout.axes)}; "
            'say their sizes, with mesh = {"' + '": ..., "'.join(layout.axes) + '": ...} in the target'
        )
    for axis, at in layout.places:
        if mesh is not None and axis not in mesh.axes:
            known = ", ".join(mesh.axes)
            raise pointed(
                layout.text, at, f"layout does not fit: there is no mesh axis {axis!r}; known: {known}"
            )
