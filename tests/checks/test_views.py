"""Views: what each rank's own copies explain, and what only all of them together do."""

from typing import Any

import pytest
import torch

from validator.align.traces import Edge, LogicalTensor, Trace, TraceCall, View
from validator.checks.edges import EdgeJudge
from validator.checks.engine import policy_of
from validator.checks.findings import Arm, Check, Evidence, Finding, Judgement, Verdict
from validator.checks.judge import Bench
from validator.checks.policy import Policy
from validator.checks.views import merge_views, mixed_outputs

VIEWS = (View(ranks=(0,)), View(ranks=(1,)))


def _edge(*, disagreeing: tuple[int, ...] = ()) -> Edge:
    value = LogicalTensor(data=torch.zeros(4), parts=(), dims=("channel",))
    return Edge(path="", dtype="float32", shape=(4,), read=lambda _: value, disagreeing=disagreeing)


def _trace(*, inputs_differ: bool, outputs_differ: bool = False) -> Trace:
    call = TraceCall(
        module="lm_head",
        candidate_module="lm_head",
        n=0,
        parent=None,
        order=0,
        inputs={"input": _edge(disagreeing=(1,) if inputs_differ else ())},
        outputs={"": _edge(disagreeing=(1,) if outputs_differ else ())},
        values={},
    )
    return Trace(
        calls={("lm_head", 0): call},
        parameters={},
        candidate_parameters={},
        views=VIEWS,
        world_size=2,
    )


def _judges(trace: Trace, *guilty: list[int] | None) -> list[EdgeJudge]:
    judges = []
    for view, indices in zip(VIEWS, guilty, strict=True):
        policy: Policy = policy_of(None)
        judge = EdgeJudge(trace=trace, view=view, policy=policy, bench=Bench(elements=8))
        if indices is not None:
            judge.said.guilty["lm_head", 0, ""] = torch.tensor(indices)
        judges.append(judge)
    return judges


def _said(kind: type, verdict: Verdict, **extra: Any) -> Any:
    arm = None if verdict is Verdict.ALIGNED else Arm.MAX
    words: dict[str, Any] = {"summary": "", "where": {}} if kind is Finding else {}
    return kind(
        module="lm_head",
        candidate_module="lm_head",
        check=Check.FUNCTION,
        verdict=verdict,
        arm=arm,
        order=3,
        evidence=Evidence(),
        **words,
        **extra,
    )


def test_a_gathered_output_whose_halves_each_follow_from_their_own_rank_is_mixed() -> None:
    trace = _trace(inputs_differ=True)
    assert mixed_outputs(trace, _judges(trace, [2, 3], [0, 1])) == {("lm_head", 0, "")}


@pytest.mark.parametrize(
    ("differ", "outputs_differ", "guilty"),
    [
        pytest.param(True, False, ([1, 2, 3], [0, 1]), id="an element that no view explains"),
        pytest.param(True, False, ([2, 3], None), id="one view explains all of it"),
        pytest.param(False, False, ([2, 3], [0, 1]), id="the inputs were alike"),
        pytest.param(True, True, ([2, 3], [0, 1]), id="each rank has an output of its own"),
    ],
)
def test_other_outputs_are_not_mixed(
    differ: bool, outputs_differ: bool, guilty: tuple[list[int] | None, list[int] | None]
) -> None:
    trace = _trace(inputs_differ=differ, outputs_differ=outputs_differ)
    assert mixed_outputs(trace, _judges(trace, *guilty)) == set()


def test_a_mixed_output_is_no_finding_and_its_judgement_says_why() -> None:
    mixed = {("lm_head", 0, "")}
    finding = _said(Finding, Verdict.DIVERGENT)
    judgement = _said(Judgement, Verdict.DIVERGENT)
    assert merge_views([[finding], [finding]], VIEWS, mixed) == []
    (kept,) = merge_views([[judgement], [judgement]], VIEWS, mixed)
    assert kept.verdict is Verdict.ALIGNED
    assert "different ranks" in kept.note


def test_what_one_view_alone_finds_is_that_rank_s() -> None:
    aligned, divergent = _said(Judgement, Verdict.ALIGNED), _said(Judgement, Verdict.DIVERGENT)
    (merged,) = merge_views([[aligned], [divergent]], VIEWS, set())
    assert (merged.verdict, merged.rank) == (Verdict.DIVERGENT, 1)


def test_what_all_views_find_is_no_single_rank_s() -> None:
    divergent = _said(Finding, Verdict.DIVERGENT, rank=0)
    (merged,) = merge_views([[divergent], [divergent]], VIEWS, set())
    assert merged.rank is None
