"""How a run's tokens are dealt to its ranks, told by the tokens themselves.

Token ids tell exactly, where some module is given a rank's own, even of an order that has no name. Else the
first activations that are split by token do, each rank's own being near to the reference's at the same tokens
and far from all others. Positions are asked last: to compute them wrongly is a fault that such ports have.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch

from validator.align.calls import MatchedCall
from validator.align.dims import RootSizes
from validator.capturing.levels import NOTHING
from validator.capturing.records import TensorRef
from validator.errors import LayoutError
from validator.sharding.inference import CLEARLY
from validator.sharding.plan import Plan
from validator.sharding.token_orders import ORDERS, TokenOrder
from validator.sharding.unshard import shard

__all__ = ["UnknownOrderError", "find_token_order", "splits_tokens"]

_TRIED = 8
"""So many tensors of a kind are asked at most: a fault spoils some, an order is that of all."""


def find_token_order(
    calls: Sequence[MatchedCall], sizes: RootSizes | None, *, mesh: tuple[int, ...] | None = None
) -> TokenOrder | None:
    """Return the order in which tokens are dealt to the ranks, or None where nothing is split by token.

    Args:
        calls: pairs of both sides, in the reference's order.
        sizes: of the model's inputs.
        mesh: sizes of the axes on which the ranks stand, where they are known; by default tokens may be dealt
            along an axis of any size, with ranks beside each other or apart along it.

    Raises:
        UnknownOrderError: the ranks have the reference's token ids in an order that they don't tell.
    """
    if sizes is None:
        return None
    found = list(_split_inputs(calls, sizes, mesh))
    ids = [item for item in found if not item[2] and not _is_floating(item[1])]
    activations = [item for item in found if not item[2] and _is_floating(item[1])]
    positions = [item for item in found if item[2] and not _is_floating(item[1])]
    for ours, their, _ in (*ids[:_TRIED], *activations[:_TRIED], *positions[:_TRIED]):
        order = _order(ours, their, _orders(sizes, len(ours), mesh))
        if order is not None:
            return order
    shapes = (sizes.batch, sizes.tokens), (sizes.batch * sizes.tokens,)
    tokens = [(ours, their) for ours, their, _ in ids if their.meta.shape in shapes and _is_ids(their)]
    return None if not tokens else _listed(*tokens[0], sizes)


class UnknownOrderError(LayoutError):
    """Tokens are split over ranks, and nothing tells which rank has which."""


_Split = tuple[Mapping[int, TensorRef], TensorRef, bool]
"""The ranks' tensors, the reference's, and whether they are positions or made of them."""


def splits_tokens(
    calls: Sequence[MatchedCall], sizes: RootSizes | None, *, mesh: tuple[int, ...] | None = None
) -> bool:
    """Tell whether some module of these calls is given each rank's own tokens.

    Args:
        calls: pairs of both sides.
        sizes: of the model's inputs.
        mesh: as of `find_token_order`.
    """
    return sizes is not None and any(True for _ in _split_inputs(calls, sizes, mesh))


def _split_inputs(
    calls: Sequence[MatchedCall], sizes: RootSizes, mesh: tuple[int, ...] | None
) -> Iterator[_Split]:
    """Yield the inputs of which each place of an axis has its own tokens, whichever these are."""
    for call in calls:
        for path, their in call.ref.inputs.items():
            values = {rank: ours.inputs.get(path) for rank, ours in call.cand.items()}
            ours = {rank: value for rank, value in values.items() if isinstance(value, TensorRef)}
            if not isinstance(their, TensorRef) or len(ours) < 2 or len(ours) != len(values):
                continue
            shapes = {rank: tensor.meta.shape for rank, tensor in ours.items()}
            if any(shape == their.meta.shape for shape in shapes.values()):
                continue
            if any(order.plans(shapes, their.meta.shape) for order in _orders(sizes, len(ours), mesh)):
                yield ours, their, "position" in path


def _orders(sizes: RootSizes, count: int, mesh: tuple[int, ...] | None) -> list[TokenOrder]:
    """Return all orders in which so many ranks may have tokens, those along one axis of them all first."""
    axes: list[tuple[tuple[int, ...], int]] = [((), 0)]
    if mesh is not None and prod(mesh) == count:
        axes += [(mesh, axis) for axis, size in enumerate(mesh) if 1 < size < count]
    else:
        for size in range(2, count):
            for before in range(1, count // size + 1):
                if count % (size * before) == 0:
                    around = (before, size, count // (size * before))
                    axes.append((tuple(n for n in around if n > 1), int(before > 1)))
    return [
        TokenOrder(order=order, batch=sizes.batch, tokens=sizes.tokens, mesh=sizes_, axis=axis)
        for sizes_, axis in axes
        for order in ORDERS
    ]


def _order(
    ours: Mapping[int, TensorRef], their: TensorRef, orders: Sequence[TokenOrder]
) -> TokenOrder | None:
    if NOTHING in {tensor.meta.one_in for tensor in (their, *ours.values())}:
        return None
    shapes = {rank: tensor.meta.shape for rank, tensor in ours.items()}
    plans: dict[Plan, TokenOrder] = {}
    for order in orders:
        for plan in order.plans(shapes, their.meta.shape):
            plans.setdefault(plan, order)
    whole = their.read()
    locals_ = {rank: tensor.read() for rank, tensor in ours.items()}
    distances = {plan: _distance(locals_, whole, plan) for plan in plans}
    if not _is_floating(their):
        exact = [plans[plan] for plan, distance in distances.items() if distance == 0]
        exact = [order for order in exact if not order.mesh] or exact
        return exact[0] if len(exact) == 1 else None
    if not distances:
        return None
    nearest = min(distances, key=lambda plan: distances[plan])
    others = [distance for plan, distance in distances.items() if plan != nearest]
    return plans[nearest] if all(distances[nearest] * CLEARLY < distance for distance in others) else None


def _listed(ours: Mapping[int, TensorRef], their: TensorRef, sizes: RootSizes) -> TokenOrder | None:
    """Look each token of each rank up in the reference's; None where the ranks have other tokens."""
    columns = their.read().reshape(sizes.batch, sizes.tokens).T.tolist()
    locals_ = [ours[rank].read().reshape(sizes.batch, -1).T.tolist() for rank in sorted(ours)]
    if sorted(columns) != sorted(column for local in locals_ for column in local):
        return None
    where = {tuple(column): place for place, column in enumerate(columns)}
    if len(where) < len(columns):
        raise UnknownOrderError(
            f"the tokens {list(their.meta.shape)} are split over the ranks in an order that their ids, some "
            "of them alike, don't tell. Declare it, as for zigzag by "
            'layout = {"*": "input=b s[cp:zigzag] ..., output=b s[cp:zigzag] ..."}'
        )
    places = tuple(tuple(where[tuple(column)] for column in local) for local in locals_)
    return TokenOrder(order="listed", batch=sizes.batch, tokens=sizes.tokens, places=places)


def _distance(locals_: Mapping[int, torch.Tensor], whole: torch.Tensor, plan: Plan) -> float:
    """Return the squared distance of the ranks' tensors from the reference's at the tokens of a plan."""
    differences = (local.double() - shard(plan, whole, rank).double() for rank, local in locals_.items())
    return sum(float(difference.square().nan_to_num(0.0, 0.0, 0.0).sum()) for difference in differences)


def _is_ids(tensor: TensorRef) -> bool:
    return "int" in tensor.meta.dtype


def _is_floating(tensor: TensorRef) -> bool:
    return "float" in tensor.meta.dtype
