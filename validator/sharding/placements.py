"""How a tensor lies on the ranks: read from DTensor, declared by the target, or inferred from shapes."""

from collections.abc import Mapping, Sequence

from validator.capturing.records import Mesh, TensorMeta
from validator.errors import LayoutError
from validator.sharding.inference import Evidence, UndecidedError, arrangements, choose, layout_line
from validator.sharding.layout import Declared
from validator.sharding.plan import Plan, plan_copies, plan_placements

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
    if recorded := _recorded(metas):
        if recorded.shape != whole:
            raise LayoutError(f"{list(recorded.shape)} against the reference's {list(whole)}")
        return recorded
    shapes = {rank: metas[rank].shape for rank in sorted(metas)}
    full = all(local == whole for local in shapes.values())
    takes = declared is not None and declared.layout.takes(len(whole))
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
    tokens = None if evidence is None else evidence.habits.tokens
    if tokens is not None and (plan := tokens.plan(shapes, whole)):
        return plan
    mesh, role = (None, "") if evidence is None else (evidence.habits.mesh, evidence.role)
    ways = arrangements(shapes, whole, mesh=mesh, name=role)
    if not ways:
        raise LayoutError(f"{_stated(shapes, whole)}; say how it is split in layout = {{...}}")
    if len(ways) == 1:
        return ways[0].plan
    chosen = None if evidence is None else choose(ways, evidence)
    if chosen is None:
        lines = " or ".join(map(layout_line, ways))
        raise UndecidedError(f"{_stated(shapes, whole)} may be split in several ways: declare {lines}")
    return chosen.plan


def _recorded(metas: Mapping[int, TensorMeta]) -> Plan | None:
    """Plan from DTensor's placements, or None where there are none or the local shapes contradict them.

    `DTensor.from_local` takes any local shape at its word, so shapes have to be checked.
    """
    shape, placements = metas[min(metas)].global_shape, metas[min(metas)].placements
    if shape is None or placements is None:
        return None
    # A submesh such as mesh["tp"] is another one on each group of ranks; the groups hold copies.
    groups: dict[Mesh, list[int]] = {}
    for rank, meta in metas.items():
        if meta.mesh is None or (meta.global_shape, meta.placements) != (shape, placements):
            return None
        groups.setdefault(meta.mesh, []).append(rank)
    plans = [
        plan_placements(shape, placements=placements, mesh=m, ranks=ranks) for m, ranks in groups.items()
    ]
    holdings = sorted((holding for plan in plans for holding in plan.holdings), key=lambda h: h.rank)
    fits = all(holding.shape == metas[holding.rank].shape for holding in holdings)
    return Plan(shape=shape, holdings=tuple(holdings), reduce=plans[0].reduce) if fits else None


def _stated(shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...]) -> str:
    stated = ", ".join(f"rank {rank} {list(local)}" for rank, local in shapes.items())
    return f"{stated} against the reference's {list(whole)}"
