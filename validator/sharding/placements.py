"""How a tensor lies on the ranks: read from DTensor, declared by the target, or inferred from shapes."""

from collections.abc import Mapping, Sequence

from validator.capturing.records import Mesh, Placement, TensorMeta
from validator.errors import LayoutError
from validator.sharding.plan import Plan, plan_copies, plan_placements, plan_split, plan_sum

__all__ = ["disagreeing", "odd_one_out", "place"]


def place(
    metas: Mapping[int, TensorMeta], *, shape: Sequence[int], declared: Placement | None = None
) -> Plan:
    """Plan how the ranks' tensors make up the reference's.

    DTensor's own placements come first, then what the target declares, then the shapes: whole on
    every rank is a copy; split along one dim, with sizes that add up, are shards in rank order.

    Args:
        metas: of each rank's tensor.
        shape: of the reference's tensor.
        declared: the target's `layout`. A tensor that is whole on every rank is no shard, whatever it says:
            a module's small arguments (masks, rotary tables) are not split with its activations.

    Raises:
        LayoutError: they make up no tensor of this shape; the message states every shape.
    """
    whole = tuple(shape)
    if recorded := _recorded(metas):
        if recorded.shape != whole:
            raise LayoutError(f"{list(recorded.shape)} against the reference's {list(whole)}")
        return recorded
    shapes = {rank: metas[rank].shape for rank in sorted(metas)}
    full = all(local == whole for local in shapes.values())
    if full and declared is not None and declared.kind == "partial":
        return plan_sum(whole, ranks=shapes, reduce=declared.reduce or "sum")
    if full:
        return plan_copies(whole, ranks=shapes)
    dim = _split_dim(shapes, whole)
    if dim is not None and _allows(declared, dim, len(whole)):
        return plan_split(whole, dim=dim, sizes=_sizes(shapes, dim))
    raise LayoutError(_mismatch(shapes, whole, declared))


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


def _split_dim(shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...]) -> int | None:
    """Return the dim along which these shapes add up to the whole, the others being whole.

    There is only one: a second would have to be whole and to add up from several parts at once.
    """
    for dim in range(len(whole)):
        if all(
            len(local) == len(whole) and _without(local, dim) == _without(whole, dim)
            for local in shapes.values()
        ):
            return dim if sum(_sizes(shapes, dim).values()) == whole[dim] else None
    return None


def _allows(declared: Placement | None, dim: int, ndim: int) -> bool:
    return declared is None or (declared.kind == "shard" and declared.dim in (dim, dim - ndim))


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _sizes(shapes: Mapping[int, tuple[int, ...]], dim: int) -> dict[int, int]:
    return {rank: local[dim] for rank, local in shapes.items()}


def _mismatch(
    shapes: Mapping[int, tuple[int, ...]], whole: tuple[int, ...], declared: Placement | None
) -> str:
    stated = ", ".join(f"rank {rank} {list(local)}" for rank, local in shapes.items())
    text = f"{stated} against the reference's {list(whole)}"
    if declared is not None:
        where = f"({declared.dim})" if declared.kind == "shard" else ""
        return f"{text}, which the declared {declared.kind}{where} does not explain"
    return f"{text}; say how it is split in layout = {{...}}" if len(shapes) > 1 else text
