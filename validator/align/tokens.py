"""How a run's tokens are dealt to its ranks, told by the tokens themselves.

Token ids tell exactly, where some module is given a rank's own, even of an order that has no name. Else the
first activations that are split by token do, each rank's own being near to the reference's at the same tokens
and far from all others. Positions are asked last: to compute them wrongly is a fault that such ports have.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from validator.align.calls import MatchedCall
from validator.align.dims import RootSizes
from validator.capturing.records import TensorRef
from validator.errors import LayoutError
from validator.sharding.plan import Plan
from validator.sharding.token_orders import ORDERS, TokenOrder
from validator.sharding.unshard import shard

__all__ = ["UnknownOrderError", "find_token_order"]

_CLEARLY = 4.0
"""How many times smaller the squared distance must be than any other order's: as in `sharding.inference`."""

_TRIED = 8
"""So many tensors of a kind are asked at most: a fault spoils some, an order is that of all."""


def find_token_order(calls: Sequence[MatchedCall], sizes: RootSizes | None) -> TokenOrder | None:
    """Return the order in which tokens are dealt to the ranks, or None where nothing is split by token.

    Args:
        calls: pairs of both sides, in the reference's order.
        sizes: of the model's inputs.

    Raises:
        UnknownOrderError: the ranks have the reference's token ids in an order that they don't tell.
    """
    if sizes is None:
        return None
    orders = [TokenOrder(order=order, batch=sizes.batch, tokens=sizes.tokens) for order in ORDERS]
    found = list(_split_inputs(calls, orders[0]))
    ids = [item for item in found if not item[2] and not _is_floating(item[1])]
    activations = [item for item in found if not item[2] and _is_floating(item[1])]
    positions = [item for item in found if item[2] and not _is_floating(item[1])]
    for ours, their, _ in (*ids[:_TRIED], *activations[:_TRIED], *positions[:_TRIED]):
        order = _order(ours, their, orders)
        if order is not None:
            return order
    return None if not ids else _listed(ids[0][0], ids[0][1], sizes)


class UnknownOrderError(LayoutError):
    """Tokens are split over ranks, and nothing tells which rank has which."""


_Split = tuple[Mapping[int, TensorRef], TensorRef, bool]
"""The ranks' tensors, the reference's, and whether they are positions or made of them."""


def _split_inputs(calls: Sequence[MatchedCall], order: TokenOrder) -> Iterator[_Split]:
    """Yield the inputs of which each rank has its own tokens, whichever these are."""
    for call in calls:
        for path, their in call.ref.inputs.items():
            values = {rank: ours.inputs.get(path) for rank, ours in call.cand.items()}
            ours = {rank: value for rank, value in values.items() if isinstance(value, TensorRef)}
            if not isinstance(their, TensorRef) or len(ours) < 2 or len(ours) != len(values):
                continue
            shapes = {rank: tensor.meta.shape for rank, tensor in ours.items()}
            if order.plan(shapes, their.meta.shape) is not None:
                yield ours, their, "position" in path


def _order(
    ours: Mapping[int, TensorRef], their: TensorRef, orders: Sequence[TokenOrder]
) -> TokenOrder | None:
    shapes = {rank: tensor.meta.shape for rank, tensor in ours.items()}
    plans = {order: order.plan(shapes, their.meta.shape) for order in orders}
    whole = their.read()
    locals_ = {rank: tensor.read() for rank, tensor in ours.items()}
    distances = {order: _distance(locals_, whole, plan) for order, plan in plans.items() if plan is not None}
    if not _is_floating(their):
        exact = [order for order, distance in distances.items() if distance == 0]
        return exact[0] if len(exact) == 1 else None
    nearest = min(distances, key=lambda order: distances[order])
    others = [distance for order, distance in distances.items() if order != nearest]
    return nearest if all(distances[nearest] * _CLEARLY < distance for distance in others) else None


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


def _is_floating(tensor: TensorRef) -> bool:
    return "float" in tensor.meta.dtype
