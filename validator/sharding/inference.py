"""The ways of splitting that explain the ranks' shapes, and which one of them the values show.

A way is a mesh, its ranks in row-major order, and the axes that split each dim; an axis that splits none
holds copies. Where several ways explain the shapes, as copies beside each other or one half of the ranks
apart do, copies that are alike tell, then the reference's own values on the same inputs, then what the
rest of the run does.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import torch

from validator.capturing.records import TensorRef
from validator.errors import LayoutError
from validator.sharding.plan import Holding, Plan, coordinates
from validator.sharding.runs import Run
from validator.sharding.token_orders import TokenOrder
from validator.sharding.unshard import shard

__all__ = [
    "CLEARLY",
    "Arrangement",
    "Evidence",
    "Habits",
    "UndecidedError",
    "arrangements",
    "choose",
    "layout_line",
    "role_of",
]

_Shape = tuple[int, ...]

CLEARLY = 4.0
"""How many times smaller the squared distance from the reference must be than any other's.

The wrong shard of an activation is as far as another activation: twice its square. A fault moves fewer
values than that, or it moves those of all ways alike.
"""

_HALVES = re.compile(r"gate_up")
"""Parameters that are two side by side, of which each rank may have its part of both."""


class UndecidedError(LayoutError):
    """Several ways of splitting explain the shapes, and no value tells which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way of splitting a tensor.

    Attributes:
        sizes: of the mesh's axes.
        splits: for each dim of the tensor the axis that splits it, or None.
        fused: the dim that is two halves side by side, each of which is split, or None.
        plan: where every part then lies.
    """

    sizes: tuple[int, ...]
    splits: tuple[int | None, ...]
    fused: int | None = None
    plan: Plan = field(compare=False)


@dataclass(slots=True)
class Habits:
    """How the tensors of a run were found to be split so far.

    Attributes:
        mesh: sizes of the mesh's axes, row-major over all ranks, or None where no mesh is known.
        roles: the way of the last tensor of a role, see `role_of`.
        copies: how often these ranks were found to hold copies.
        tokens: how tokens are dealt to the ranks, or None where no tensor is split by token.
        inputs: batch and tokens of the model's inputs, or None where they are not known.
    """

    mesh: tuple[int, ...] | None = None
    roles: dict[str, Arrangement] = field(default_factory=dict)
    copies: Counter[tuple[tuple[int, ...], ...]] = field(default_factory=Counter)
    tokens: TokenOrder | None = None
    inputs: tuple[int, int] | None = None

    def note(self, role: str, chosen: Arrangement) -> None:
        """Remember what the values of one tensor showed."""
        self.roles[role] = chosen
        self.copies[chosen.plan.copies] += 1

    def choose(self, role: str, among: Sequence[Arrangement]) -> Arrangement | None:
        """Return the way that the same tensor of other layers lies, else that whose copies are most usual."""
        if (usual := self.roles.get(role)) in among:
            return next(way for way in among if way == usual)
        seen = sorted(among, key=lambda way: -self.copies[way.plan.copies])
        counts = [self.copies[way.plan.copies] for way in seen]
        return seen[0] if counts[0] and (len(seen) == 1 or counts[0] > counts[1]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What may tell how a tensor is split, beside its shapes.

    Attributes:
        tensors: the ranks' own.
        ref: the reference's tensor on the same inputs, or None where there are no values to compare.
        role: its name with `*` for each number: the tensors of all layers at one place share it.
        habits: what was found of other tensors of the run.
        side: what the target's `layout` calls it: `input`, `output`, or the last part of a parameter's name.
    """

    tensors: Mapping[int, TensorRef]
    ref: TensorRef | None
    role: str
    habits: Habits
    side: str = "output"


def role_of(name: str) -> str:
    """Return the name that the tensors of all layers at one place share."""
    return re.sub(r"(?<![^./])\d+(?![^./])", "*", name)


def arrangements(
    shapes: Mapping[int, _Shape], whole: _Shape, *, mesh: tuple[int, ...] | None = None, name: str = ""
) -> list[Arrangement]:
    """Return the ways in which tensors of these shapes make up one of shape `whole`, each different.

    Args:
        shapes: of each rank's tensor.
        whole: of the logical tensor.
        mesh: sizes of the axes, where they are known; by default every mesh of one or two axes is tried.
        name: of a parameter; fused gate and up projections may be split half by half.
    """
    ranks = sorted(shapes)
    if any(len(shape) != len(whole) for shape in shapes.values()):
        return []
    split = {dim for shape in shapes.values() for dim, size in enumerate(whole) if shape[dim] != size}
    found: list[Arrangement] = []
    for sizes in _meshes(len(ranks), mesh):
        for axes in product((None, *range(len(whole))), repeat=len(sizes)):
            chosen = [dim for dim in axes if dim is not None]
            if len(set(chosen)) != len(chosen) or set(chosen) != split:
                continue
            splits = tuple(axes.index(dim) if dim in axes else None for dim in range(len(whole)))
            for fused in (None, *(split if _HALVES.search(name) else ())):
                plan = _plan(shapes, whole, sizes, splits, fused)
                if plan is not None and all(plan != way.plan for way in found):
                    found.append(Arrangement(sizes=sizes, splits=splits, fused=fused, plan=plan))
    return found


def choose(ways: Sequence[Arrangement], evidence: Evidence) -> Arrangement | None:
    """Return the way that the values show, or None where nothing tells."""
    tensors, role, habits = evidence.tensors, evidence.role, evidence.habits
    alike = [way for way in ways if _copies_agree(way.plan, tensors)] or list(ways)
    nearest = alike if len(alike) == 1 else _nearest(alike, evidence)
    if len(nearest) == 1:
        habits.note(role, nearest[0])
        return nearest[0]
    # Ways of equal parts, as of zeros, are all true: the one that is taken tells nothing of other tensors.
    return habits.choose(role, nearest or ways) or next(iter(nearest), None)


def layout_line(way: Arrangement, side: str = "output") -> str:
    """Return what a target would declare of a side, with a mesh where one axis does not do."""
    _, *copies = way.sizes
    is_plain = not copies or (0 in way.splits and 1 not in way.splits)
    names = ["tp"] if is_plain else [f"axis{i}" for i in range(len(way.sizes))]
    sharers = f"/{copies[0]}" if is_plain and copies else ""
    dims = ["(gate|up)" if dim == way.fused else f"d{dim}" for dim in range(len(way.splits))]
    line = " ".join(
        name if axis is None else f"{name}[{names[axis]}{sharers}]"
        for name, axis in zip(dims, way.splits, strict=True)
    )
    sizes = ", ".join(f'"{name}": {size}' for name, size in zip(names, way.sizes, strict=False))
    line = line if side == "output" else f"{side}={line}"
    return f'"{line}"' + ("" if is_plain else f" with mesh = {{{sizes}}}")


def _nearest(ways: Sequence[Arrangement], evidence: Evidence) -> list[Arrangement]:
    """Return the way that is clearly nearest to the reference, with those that have equal parts, or none."""
    if evidence.ref is None:
        return []
    whole = evidence.ref.read()
    locals_ = {rank: tensor.read() for rank, tensor in evidence.tensors.items()}
    parts = [{rank: shard(way.plan, whole, rank) for rank in locals_} for way in ways]
    distances = [sum(_distance(locals_[rank], of_way[rank]) for rank in locals_) for of_way in parts]
    order = sorted(range(len(ways)), key=lambda i: distances[i])
    best = order[0]
    others = [i for i in order if any(_distance(parts[i][rank], parts[best][rank]) for rank in locals_)]
    is_clear = not others or distances[best] * CLEARLY < distances[others[0]]
    return [ways[i] for i in order if i not in others] if is_clear else []


def _distance(local: torch.Tensor, part: torch.Tensor) -> float:
    kind = torch.complex128 if part.is_complex() else torch.float64
    difference = local.to(kind) - part.to(kind)
    return float(difference.abs().square().nan_to_num(0.0, 0.0, 0.0).sum())


def _copies_agree(plan: Plan, tensors: Mapping[int, TensorRef]) -> bool:
    return all(len({tensors[rank].meta.checksum for rank in ranks}) == 1 for ranks in plan.copies)


def _meshes(count: int, mesh: tuple[int, ...] | None) -> Iterator[tuple[int, ...]]:
    if mesh is not None and prod(mesh) == count:
        yield mesh
        return
    yield (count,)
    for first in range(2, count // 2 + 1):
        if count % first == 0:
            yield (first, count // first)


def _plan(
    shapes: Mapping[int, _Shape],
    whole: _Shape,
    sizes: tuple[int, ...],
    splits: tuple[int | None, ...],
    fused: int | None,
) -> Plan | None:
    """Plan one way, or return None where the shapes are not those that it gives."""
    ranks = sorted(shapes)
    places = {rank: coordinates(i, sizes) for i, rank in enumerate(ranks)}
    starts: list[list[int] | None] = []
    for dim, axis in enumerate(splits):
        if axis is None:
            if any(shapes[rank][dim] != whole[dim] for rank in ranks):
                return None
            starts.append(None)
            continue
        lengths: dict[int, int] = {}
        for rank in ranks:
            if lengths.setdefault(places[rank][axis], shapes[rank][dim]) != shapes[rank][dim]:
                return None
        ordered = [lengths[i] for i in range(sizes[axis])]
        if sum(ordered) != whole[dim] or (dim == fused and any(length % 2 for length in ordered)):
            return None
        starts.append([sum(ordered[:i]) for i in range(sizes[axis])])
    holdings = []
    for rank in ranks:
        dims = []
        for dim, axis in enumerate(splits):
            of_axis = starts[dim]
            if axis is None or of_axis is None:
                dims.append(_runs(0, whole[dim], whole[dim], 1))
            else:
                pieces = 2 if dim == fused else 1
                dims.append(_runs(of_axis[places[rank][axis]], shapes[rank][dim], whole[dim], pieces))
        holdings.append(Holding(rank=rank, shape=shapes[rank], dims=tuple(dims)))
    return Plan(shape=whole, holdings=tuple(holdings))


def _runs(start: int, length: int, whole: int, pieces: int) -> tuple[Run, ...]:
    """Return the runs of a shard that is `length / pieces` long in each of the dim's equal pieces."""
    of_piece, first = length // pieces, start // pieces
    if not length:
        return ()
    return tuple(
        Run(
            local=range(i * of_piece, (i + 1) * of_piece),
            logical=range(i * whole // pieces + first, i * whole // pieces + first + of_piece),
        )
        for i in range(pieces)
    )
