"""How a tensor lies on the ranks: read from DTensor, declared by the target, or inferred from shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from validator.capturing.records import Mesh, TensorMeta, TensorRef
from validator.errors import LayoutError
from validator.sharding.inference import Evidence, UndecidedError, arrangements, choose, layout_line
from validator.sharding.layout import Declared
from validator.sharding.plan import Plan, plan_copies, plan_placements
from validator.sharding.runs import Run, runs_of
from validator.sharding.token_rows import lie_elsewhere, row_dims
from validator.sharding.unshard import unshard

__all__ = ["disagreeing", "odd_one_out", "place"]


def place(
    metas: Mapping[int, TensorMeta],
    *,
    shape: Sequence[int],
    declared: Declared | None = None,
    evidence: Evidence | None = None,
) -> Plan:
    """Plan how the ranks' tensors make up the reference's.

    DTensor's own placements come first, then what the target declares, then the shapes: whole on
    every rank is a copy; split along one dim, with sizes that add up, are shards in rank order. Where shapes
    leave several ways, as copies of shards or shards along two dims do, the evidence decides.

    Args:
        metas: of each rank's tensor.
        shape: of the reference's tensor.
        declared: the target's `layout`. It says nothing of tensors with another number of dims, and a tensor
            that is whole on every rank is a copy where the layout would split it: a module's small arguments
            (masks, rotary tables) are not split with its activations.
        evidence: the tensors, and what else may tell how they are split.

    Raises:
        LayoutError: they make up no tensor of this shape; the message states every shape.
        UndecidedError: they make it up in several ways, and nothing tells which.
    """
    whole = tuple(shape)
    shapes = {rank: metas[rank].shape for rank in sorted(metas)}
    full = all(local == whole for local in shapes.values())
    takes = declared is not None and declared.layout.takes(len(whole))
    groups = _recorded(metas)
    if groups and all(plan.shape == whole for plan in groups):
        return _joined(groups, plan_copies(whole, ranks=map(_lowest, groups)))
    if groups and not (declared and takes):
        return _joined(groups, _inferred_groups(groups, whole, evidence))
    if declared and takes and (plan := _declared(shapes, whole, declared, is_copied=full)):
        return plan
    if full:
        return plan_copies(whole, ranks=shapes)
    if len(shapes) > 1:
        return _inferred(shapes, whole, evidence)
    raise LayoutError(_stated(shapes, whole))


def disagreeing(plan: Plan, metas: Mapping[int, TensorMeta]) -> tuple[int, ...]:
    """Return the ranks whose copy has other bits than that of the lowest rank that holds the same."""
    return tuple(
        sorted(
            rank
            for ranks in plan.copies
            for rank in ranks
            if metas[rank].checksum != metas[ranks[0]].checksum
        )
    )


def odd_one_out(plan: Plan, metas: Mapping[int, TensorMeta]) -> int | None:
    """Return the only rank whose copy has other bits than all others' of it, which are two or more.

    None where no copies differ, several ranks' do, or only two hold copies: nothing says whose is wrong.
    """
    odd: list[int] = []
    for ranks in plan.copies:
        holders: dict[str, list[int]] = {}
        for rank in ranks:
            holders.setdefault(metas[rank].checksum, []).append(rank)
        if len(holders) == 1:
            continue
        fewest, *_, most = sorted(holders.values(), key=len)
        if len(holders) > 2 or len(fewest) > 1 or len(most) == 1:
            return None
        odd += fewest
    return odd[0] if len(odd) == 1 else None


def _declared(
    shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...], declared: Declared, *, is_copied: bool
) -> Plan | None:
    """Plan by the target's layout; None where it does not explain tensors that are whole on every rank."""
    try:
        plan = declared.plan(whole, shapes)
    except LayoutError:
        if is_copied:
            return None
        raise
    planned = {holding.rank: holding.shape for holding in plan.holdings}
    if planned == shapes:
        return plan
    if is_copied:
        return None
    places = ", ".join(f"rank {rank} {list(local)}" for rank, local in planned.items())
    raise LayoutError(
        f"{_stated(shapes, whole)}, which the declared {declared.layout.text!r} does not explain: "
        f"it gives {places}"
    )


def _inferred(
    shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...], evidence: Evidence | None
) -> Plan:
    """Plan by shapes and evidence; what contradicts the values is no plan."""
    dealt = [] if evidence is None else _dealt(shapes, whole, evidence)
    if len(dealt) == 1:
        return dealt[0]
    plan = _split(shapes, whole, evidence)
    if evidence is None or evidence.ref is None or evidence.habits.inputs is None:
        return plan
    batch, tokens = evidence.habits.inputs
    dims = row_dims(plan, batch=batch, tokens=tokens)
    is_floating = "float" in evidence.ref.meta.dtype
    if dims and is_floating and lie_elsewhere(plan, evidence.tensors, evidence.ref, dims):
        side = evidence.side
        raise UndecidedError(
            f"{_stated(shapes, whole)} hold sequences and tokens that are not in the order of the ranks: "
            f'declare their order, such as "{side}=b s[cp:zigzag] ..." with mesh = {{"cp": ..., "tp": ...}}'
        )
    return plan


def _dealt(shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...], evidence: Evidence) -> list[Plan]:
    """Return the plans by the order of the run's tokens; of several, those whose copies are alike."""
    tokens = evidence.habits.tokens
    plans = [] if tokens is None else tokens.plans(shapes, whole)
    metas = {rank: tensor.meta for rank, tensor in evidence.tensors.items()}
    return [plan for plan in plans if not disagreeing(plan, metas)] if len(plans) > 1 else plans


def _split(shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...], evidence: Evidence | None) -> Plan:
    mesh, role = (None, "") if evidence is None else (evidence.habits.mesh, evidence.role)
    ways = arrangements(shapes, whole, mesh=mesh, name=role)
    if not ways:
        raise LayoutError(f"{_stated(shapes, whole)}; say how it is split in layout = {{...}}")
    if len(ways) == 1:
        return ways[0].plan
    chosen = None if evidence is None else choose(ways, evidence)
    if chosen is None:
        side = "output" if evidence is None else evidence.side
        lines = " or ".join(layout_line(way, side) for way in ways)
        raise UndecidedError(f"{_stated(shapes, whole)} may be split in several ways: declare {lines}")
    return chosen.plan


def _recorded(metas: Mapping[int, TensorMeta]) -> list[Plan]:
    """Plan from DTensor's placements, for each mesh; nothing where the local shapes contradict them.

    A submesh such as mesh["tp"] is another one on each group of ranks. `DTensor.from_local` takes any local
    shape at its word, so shapes have to be checked.
    """
    placements = metas[min(metas)].placements
    if placements is None:
        return []
    groups: dict[Mesh, list[int]] = {}
    for rank, meta in sorted(metas.items()):
        if meta.mesh is None or meta.placements != placements:
            return []
        groups.setdefault(meta.mesh, []).append(rank)
    plans = []
    for mesh, ranks in groups.items():
        shape = metas[ranks[0]].global_shape
        if shape is None or any(metas[rank].global_shape != shape for rank in ranks):
            return []
        plans.append(plan_placements(shape, placements=placements, mesh=mesh, ranks=ranks))
    holdings = [holding for plan in plans for holding in plan.holdings]
    return plans if all(holding.shape == metas[holding.rank].shape for holding in holdings) else []


def _inferred_groups(groups: Sequence[Plan], whole: tuple[int, ...], evidence: Evidence | None) -> Plan:
    """Plan how the groups' tensors make up the whole, each under its lowest rank."""
    shapes = {_lowest(plan): plan.shape for plan in groups}
    if len(groups) == 1 or all(shape == groups[0].shape for shape in (*shapes.values(), whole)):
        raise LayoutError(f"{list(groups[0].shape)} against the reference's {list(whole)}")
    try:
        return _inferred(shapes, whole, None if evidence is None else _of_groups(groups, evidence))
    except LayoutError as error:
        ranks = ", ".join(str([h.rank for h in plan.holdings]) for plan in groups)
        raise type(error)(f"of the DTensors on the ranks {ranks}, each by its lowest: {error}") from None


def _of_groups(groups: Sequence[Plan], evidence: Evidence) -> Evidence:
    """Return the evidence of what the groups' DTensors are, whole."""
    tensors: dict[int, TensorRef] = {}
    for plan in groups:
        ours = {holding.rank: evidence.tensors[holding.rank] for holding in plan.holdings}
        read = partial(_whole, plan, ours)
        # Copies are told apart by what all ranks of a group have.
        checksum = " ".join(tensor.meta.checksum for tensor in ours.values())
        meta = replace(ours[_lowest(plan)].meta, shape=plan.shape, checksum=checksum)
        tensors[_lowest(plan)] = TensorRef(meta=meta, read=read)
    return replace(evidence, tensors=tensors)


def _whole(plan: Plan, tensors: Mapping[int, TensorRef]) -> torch.Tensor:
    return unshard(plan, lambda rank: tensors[rank].read())


def _joined(groups: Sequence[Plan], outer: Plan) -> Plan:
    """Put the groups' plans in the places that their lowest ranks have."""
    place = {holding.rank: holding for holding in outer.holdings}
    holdings = [
        replace(holding, dims=tuple(map(_within, holding.dims, place[_lowest(plan)].dims)))
        for plan in groups
        for holding in plan.holdings
    ]
    holdings.sort(key=lambda holding: holding.rank)
    return Plan(shape=outer.shape, holdings=tuple(holdings), reduce=groups[0].reduce)


def _within(inner: tuple[Run, ...], outer: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of a part of a part: `inner` speaks of the positions that `outer` has places for."""
    if len(outer) == 1 and outer[0].local == outer[0].logical:
        return inner
    known = {own: place for run in outer for own, place in zip(run.local, run.logical, strict=True)}
    places = {own: known[place] for run in inner for own, place in zip(run.local, run.logical, strict=True)}
    size = max(places, default=-1) + 1
    return runs_of(np.array([places.get(own, -1) for own in range(size)], dtype=np.int64))


def _lowest(plan: Plan) -> int:
    return min(holding.rank for holding in plan.holdings)


def _stated(shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...]) -> str:
    stated = ", ".join(f"rank {rank} {list(local)}" for rank, local in shapes.items())
    return f"{stated} against the reference's {list(whole)}"
