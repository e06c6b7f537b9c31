"""Rows that both sides keep in other orders."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models import Setup
from tests.ranks import RankPool
from tests.stimuli import Stimulus
from tests.trials import Trial, judge
from validator.align.traces import Edge, LogicalTensor, TraceCall, View
from validator.checks.row_order import row_order
from validator.sharding.plan import Part

ROWS, CHANNELS = 40, 16


def _rows(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, CHANNELS, dtype=torch.float64, generator=generator)


def _shuffled(seed: int = 1) -> Tensor:
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))


def test_rows_in_another_order_are_found_by_their_values() -> None:
    exact, order = _rows(), _shuffled()
    stored = exact[order].to(torch.bfloat16).double()
    found = row_order(exact, stored)
    assert found is not None
    assert torch.equal(stored[found], exact.to(torch.bfloat16).double())


def test_rows_that_are_alike_go_to_one_place_each() -> None:
    exact = _rows()
    exact[7] = exact[3]
    found = row_order(exact, exact[_shuffled()])
    assert found is not None
    assert torch.equal(found.sort().values, torch.arange(ROWS))
    assert torch.equal(exact[_shuffled()][found], exact)


def test_a_row_that_is_a_little_wrong_finds_its_place() -> None:
    exact, order = _rows(), _shuffled()
    wrong = exact[order]
    wrong[5] *= 1.1
    found = row_order(exact, wrong)
    assert found is not None
    assert torch.equal(order[found], torch.arange(ROWS))


@pytest.mark.parametrize("apart", [0.3, 0.05], ids=["rather alike", "very alike"])
def test_rows_that_are_much_alike_and_changed_places_are_told_apart(apart: float) -> None:
    exact = _rows()
    exact[7] = exact[3] + apart * exact[7]
    exact[11] = exact[3] + apart * exact[11]
    order = torch.arange(ROWS)
    order[[3, 7, 11]] = torch.tensor([7, 11, 3])
    found = row_order(exact, exact[order].to(torch.bfloat16).double())
    assert found is not None
    assert torch.equal(order[found], torch.arange(ROWS))


def test_a_row_that_is_wrong_does_not_change_places_with_one_much_like_it() -> None:
    exact = _rows()
    exact[7] = exact[3] + 0.05 * exact[7]
    wrong = exact.clone()
    wrong[3] *= 1.03
    assert row_order(exact, wrong) is None


@pytest.mark.parametrize(
    "change",
    [lambda x: x, lambda x: x.to(torch.bfloat16).double(), lambda x: 1.01 * x],
    ids=["equal", "rounded", "scaled"],
)
def test_rows_in_one_order_stay(change: Callable[[Tensor], Tensor]) -> None:
    assert row_order(_rows(), change(_rows())) is None


@pytest.mark.parametrize(
    "change",
    [lambda x: -x, lambda x: torch.cat([x[1:2], x[1:]]), lambda x: x * torch.nan],
    ids=["negated", "one row twice and one lost", "NaN"],
)
def test_rows_without_a_counterpart_stay_to_be_judged(change: Callable[[Tensor], Tensor]) -> None:
    assert row_order(_rows(), change(_rows())) is None


def _edge(data: Tensor, parts: tuple[Part, ...]) -> Edge:
    dims = ("", "channel")

    def read(view: View) -> LogicalTensor:
        return LogicalTensor(data=data, parts=parts, dims=dims)

    return Edge(path="x", dtype="float64", shape=tuple(data.shape), read=read, parts=parts, dims=dims)


def test_a_reordered_edge_still_knows_which_rank_held_which_row() -> None:
    parts = (Part(rank=0, box=((0, 2), (0, 1))), Part(rank=1, box=((2, 4), (0, 1))))
    data = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    edge = _edge(data, parts).with_rows(torch.tensor([2, 0, 1, 3]))
    found = edge.read(View(ranks=(0, 1)))
    assert found.data[:, 0].tolist() == [2.0, 0.0, 1.0, 3.0]
    assert {(part.rank, part.box[0]) for part in found.parts} == {(1, (0, 1)), (0, (1, 3)), (1, (3, 4))}
    assert found.parts == edge.parts


def test_a_reordered_call_leaves_what_has_other_rows_alone() -> None:
    whole = (Part(rank=0, box=((0, 4), (0, 1))),)
    rows, other = _edge(torch.arange(4.0)[:, None], whole), _edge(torch.zeros(3, 1), ())
    call = TraceCall(
        module="act",
        candidate_module="act",
        n=0,
        parent=None,
        order=0,
        inputs={"x": rows, "y": other},
        outputs={"": rows},
        values={},
    ).with_rows(torch.tensor([3, 2, 1, 0]))
    view = View(ranks=(0,))
    assert call.inputs["x"].read(view).data[:, 0].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert call.outputs[""].read(view).data[:, 0].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert call.inputs["y"] is other


@pytest.mark.parametrize("fault", [None, "moe-map-shifted"])
def test_experts_that_sort_their_rows_otherwise_are_healthy_and_their_faults_are_found(
    fault: str | None, tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    setup = Setup(
        family="qwen3-moe",
        ref_experts="grouped_mm",
        cand_experts="batched_mm",
        stimulus=Stimulus.MANY_EXPERTS,
    )
    result = judge(Trial(setup=setup, fault=fault), tmp_path, rank_pool)
    if fault is None:
        assert result.verdict == "aligned"
    else:
        assert result.first_divergence is not None
        assert result.first_divergence.module == "model.layers.2.mlp.experts"
