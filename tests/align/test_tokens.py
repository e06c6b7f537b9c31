"""Which tokens each rank has, told by ids or activations."""

import pytest
import torch

from tests.align.build import Recorder
from validator.align.calls import match_calls
from validator.align.dims import RootSizes
from validator.align.tokens import UnknownOrderError, find_token_order
from validator.capturing.records import RankCapture
from validator.sharding.token_orders import TokenOrder

B, S = 2, 8
IDS = torch.arange(B * S).reshape(B, S)
HIDDEN = torch.randn(B, S, 3, generator=torch.Generator().manual_seed(0))
PLACES = {
    "contiguous": ([0, 1, 2, 3], [4, 5, 6, 7]),
    "zigzag": ([0, 1, 6, 7], [2, 3, 4, 5]),
    "interleaved": ([0, 2, 4, 6], [1, 3, 5, 7]),
    "listed": ([0, 3, 4, 7], [1, 2, 5, 6]),
}


def capture(rank: int, ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor) -> RankCapture:
    recorder = Recorder(rank)
    with recorder.call("", {"ids": ids, "position_ids": positions}):
        recorder.leaf("layer", hidden, hidden)
    return recorder.capture()


def found(
    order: str, *, ids: torch.Tensor = IDS, split_ids: bool = True, noise: float = 1e-3, positions: str = ""
) -> TokenOrder | None:
    ref = capture(0, ids, HIDDEN, torch.arange(S)[None])
    cand = [
        capture(
            rank,
            ids[:, mine] if split_ids else ids,
            (HIDDEN * (1 + noise))[:, mine],
            torch.tensor(PLACES[positions or order][rank])[None],
        )
        for rank, mine in enumerate(PLACES[order])
    ]
    matched = match_calls(cand=cand, ref=ref, modules={"": "", "layer": "layer"})
    return find_token_order(matched.calls, RootSizes(batch=B, tokens=S))


def test_the_reference_on_one_rank_has_no_order() -> None:
    ref = capture(0, IDS, HIDDEN, torch.arange(S)[None])
    matched = match_calls(cand=[ref], ref=ref, modules={"": "", "layer": "layer"})
    assert find_token_order(matched.calls, RootSizes(batch=B, tokens=S)) is None


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "interleaved"])
@pytest.mark.parametrize("split_ids", [True, False], ids=["ids", "activations"])
def test_ids_tell_the_order_and_else_activations_whatever_the_positions(order: str, split_ids: bool) -> None:
    told = found(order, split_ids=split_ids, positions="contiguous")
    assert told == TokenOrder(order=order, batch=B, tokens=S)


def test_an_order_without_a_name_is_listed() -> None:
    told = found("listed")
    assert told is not None
    assert told.places == tuple(map(tuple, PLACES["listed"]))


def test_ids_that_are_alike_in_an_order_without_a_name_ask_for_a_layout() -> None:
    repeated = IDS.clone()
    repeated[:, 5] = repeated[:, 4]
    with pytest.raises(UnknownOrderError, match=r"Declare it, as for zigzag by layout = \{"):
        found("listed", ids=repeated)


LOCAL = {"rows": (B, 4, 3), "one dim": (4 * B, 3), "heads first": (B, 5, 4, 3)}
WHOLE = {"rows": (B, S, 3), "one dim": (S * B, 3), "heads first": (B, 5, S, 3)}


@pytest.mark.parametrize("form", LOCAL)
@pytest.mark.parametrize("order", PLACES)
def test_tensors_with_tokens_along_any_dim_are_planned(form: str, order: str) -> None:
    places = tuple(map(tuple, PLACES[order])) if order == "listed" else ()
    plan = TokenOrder(order=order, batch=B, tokens=S, places=places).plan(
        {0: LOCAL[form], 1: LOCAL[form]}, WHOLE[form]
    )
    assert plan is not None
    held = torch.zeros(WHOLE[form], dtype=torch.int64)
    for part in plan.parts((1,)):
        held[tuple(slice(*interval) for interval in part.box)] += 1
    tokens = held.reshape(B, -1, S, 3)[0, 0, :, 0]
    assert tokens.nonzero().flatten().tolist() == PLACES[order][1]


def test_what_is_split_along_channels_is_not_split_by_token() -> None:
    order = TokenOrder(order="contiguous", batch=B, tokens=S)
    assert order.plan({0: (B, S, 4), 1: (B, S, 4)}, (B, S, 8)) is None


def test_a_batch_of_as_many_sequences_as_tokens_is_no_token_dim() -> None:
    plan = TokenOrder(order="zigzag", batch=S, tokens=S).plan({0: (S, 4, 3), 1: (S, 4, 3)}, (S, S, 3))
    assert plan is not None
    assert [part.box[1] for part in plan.parts((0,))] == [(0, 2), (6, 8)]
