"""Which tokens each rank has, told by ids or activations."""

from dataclasses import replace

import pytest
import torch

from tests.align.build import Recorder, tensor_ref
from validator.align.builder import build_trace
from validator.align.calls import match_calls
from validator.align.dims import RootSizes
from validator.align.tokens import UnknownOrderError, find_token_order
from validator.align.traces import View
from validator.capturing.records import RankCapture
from validator.sharding.inference import Evidence, Habits, UndecidedError
from validator.sharding.placements import place
from validator.sharding.token_orders import TokenOrder
from validator.sharding.unshard import unshard

B, S = 2, 8
SIZES = RootSizes(batch=B, tokens=S)
MODULES = {"": "", "layer": "layer"}
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


@pytest.mark.parametrize(
    "made_of_tokens",
    [torch.stack([IDS, IDS + 1], -1), torch.ones(B, S, dtype=torch.bool)],
    ids=["choices of experts", "mask"],
)
def test_integers_that_are_no_token_ids_list_no_order(made_of_tokens: torch.Tensor) -> None:
    assert found("listed", ids=made_of_tokens) is None


LOCAL = {"rows": (B, 4, 3), "one dim": (4 * B, 3), "heads first": (B, 5, 4, 3)}
WHOLE = {"rows": (B, S, 3), "one dim": (S * B, 3), "heads first": (B, 5, S, 3)}


@pytest.mark.parametrize("form", LOCAL)
@pytest.mark.parametrize("order", PLACES)
def test_tensors_with_tokens_along_any_dim_are_planned(form: str, order: str) -> None:
    places = tuple(map(tuple, PLACES[order])) if order == "listed" else ()
    (plan,) = TokenOrder(order=order, batch=B, tokens=S, places=places).plans(
        {0: LOCAL[form], 1: LOCAL[form]}, WHOLE[form]
    )
    held = torch.zeros(WHOLE[form], dtype=torch.int64)
    for part in plan.parts((1,)):
        held[tuple(slice(*interval) for interval in part.box)] += 1
    tokens = held.reshape(B, -1, S, 3)[0, 0, :, 0]
    assert tokens.nonzero().flatten().tolist() == PLACES[order][1]


def test_what_is_split_along_channels_is_not_split_by_token() -> None:
    order = TokenOrder(order="contiguous", batch=B, tokens=S)
    assert order.plans({0: (B, S, 4), 1: (B, S, 4)}, (B, S, 8)) == []


def test_a_batch_of_as_many_sequences_as_tokens_is_no_token_dim() -> None:
    (plan,) = TokenOrder(order="zigzag", batch=S, tokens=S).plans({0: (S, 4, 3), 1: (S, 4, 3)}, (S, S, 3))
    assert [part.box[1] for part in plan.parts((0,))] == [(0, 2), (6, 8)]


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "interleaved"])
@pytest.mark.parametrize("is_outer", [True, False], ids=["copies beside each other", "copies apart"])
@pytest.mark.parametrize("split_ids", [True, False], ids=["ids", "activations"])
def test_tokens_dealt_along_one_axis_of_a_mesh_have_an_order(
    order: str, is_outer: bool, split_ids: bool
) -> None:
    places = [PLACES[order][rank // 2 if is_outer else rank % 2] for rank in range(4)]
    cand = [
        capture(rank, IDS[:, mine] if split_ids else IDS, HIDDEN[:, mine] * 1.001, torch.arange(4)[None])
        for rank, mine in enumerate(places)
    ]
    ref = capture(0, IDS, HIDDEN, torch.arange(S)[None])
    told = find_token_order(match_calls(cand=cand, ref=ref, modules=MODULES).calls, SIZES)
    assert told == TokenOrder(order=order, batch=B, tokens=S, mesh=(2, 2), axis=0 if is_outer else 1)
    (plan,) = told.plans(dict.fromkeys(range(4), (B, 4, 3)), (B, S, 3))
    assert torch.equal(unshard(plan, lambda rank: HIDDEN[:, places[rank]]), HIDDEN)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "interleaved"])
def test_sequences_and_tokens_that_are_both_split_have_an_order(order: str) -> None:
    rows = [(slice(rank // 2, rank // 2 + 1), PLACES[order][rank % 2]) for rank in range(4)]
    cand = [
        capture(rank, IDS[own][:, mine], HIDDEN[own][:, mine], torch.arange(4)[None])
        for rank, (own, mine) in enumerate(rows)
    ]
    ref = capture(0, IDS, HIDDEN, torch.arange(S)[None])
    told = find_token_order(match_calls(cand=cand, ref=ref, modules=MODULES).calls, SIZES)
    assert told == TokenOrder(order=order, batch=B, tokens=S, mesh=(2, 2), axis=1)
    (plan,) = told.plans(dict.fromkeys(range(4), (1, 4, 3)), (B, S, 3))
    assert torch.equal(unshard(plan, lambda rank: HIDDEN[rows[rank][0]][:, rows[rank][1]]), HIDDEN)


def test_an_order_without_a_name_on_a_mesh_is_asked_for_where_rank_order_would_be_wrong() -> None:
    held = {rank: HIDDEN[:, PLACES["listed"][rank // 2]] for rank in range(4)}
    tensors = {rank: tensor_ref(part) for rank, part in held.items()}
    metas = {rank: tensor.meta for rank, tensor in tensors.items()}
    evidence = Evidence(tensors=tensors, ref=tensor_ref(HIDDEN), role="", habits=Habits(inputs=(B, S)))
    with pytest.raises(UndecidedError, match="declare their order"):
        place(metas, shape=HIDDEN.shape, evidence=evidence)
    # What no order explains is a fault in the order of the ranks.
    noise = torch.randn(HIDDEN.shape, generator=torch.Generator().manual_seed(1))
    faulty = {rank: tensor_ref(noise[:, 4 * (rank // 2) :][:, :4]) for rank in range(4)}
    metas = {rank: tensor.meta for rank, tensor in faulty.items()}
    plan = place(metas, shape=HIDDEN.shape, evidence=replace(evidence, tensors=faulty))
    assert plan.copies == ((0, 1), (2, 3))


def test_a_layout_of_other_modules_does_not_stand_for_the_order_of_the_tokens() -> None:
    ids = IDS.clone()
    ids[:, 5] = ids[:, 4]
    ref = capture(0, ids, HIDDEN, torch.arange(S)[None])
    cand = [
        capture(rank, ids[:, mine], HIDDEN[:, mine], torch.tensor([mine]))
        for rank, mine in enumerate(PLACES["listed"])
    ]
    with pytest.raises(UnknownOrderError, match="Declare it"):
        build_trace(cand=cand, ref=ref, layout={"layer": "output=b s h"})
    order = "s:0,3,4,7,1,2,5,6[cp]"
    trace = build_trace(cand=cand, ref=ref, layout={"*": f"input=b {order} ..., output=b {order} ..."})
    assert torch.equal(trace.calls["layer", 0].outputs[""].read(View(ranks=(0,))).data, HIDDEN)
