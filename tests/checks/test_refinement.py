"""Edges that are outside of a measured band in a few elements are measured again before anything is said."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from validator.align.traces import Edge, LogicalTensor, Trace, TraceCall, View
from validator.checks.edges import EdgeJudge
from validator.checks.engine import policy_of
from validator.checks.findings import Verdict
from validator.checks.judge import Bench
from validator.checks.module_code import Code, CodeEdge, Key, Spread
from validator.checks.roundings import Constant
from validator.numerics.bands import Noise
from validator.numerics.recipes import FUSED, Recipe

EXACT = torch.ones(16, 32, dtype=torch.float64)


class Measured:
    """Replays whose few runs find `few` for sigma, many runs `many`, and which get as far as `far`."""

    def __init__(self, few: float, many: float, far: float = 0.0) -> None:
        self.sigma = {False: few, True: many}
        self.far = far
        self.asked: list[bool] = []

    def spread(self, recipe: Recipe, *, is_refined: bool = False) -> Mapping[Key, Spread]:
        self.asked.append(is_refined)
        sigma = torch.full_like(EXACT, self.sigma[is_refined])
        return {(None, ""): Spread(sigma=sigma, bound=None, control=EXACT)}

    def reach(self, recipe: Recipe) -> Mapping[Key, Tensor]:
        return {(None, ""): torch.full_like(EXACT, self.far)}

    def sensitivity(self, constant: Constant) -> Mapping[Key, Tensor]:
        return {}

    def rows(self, recipe: Recipe) -> Mapping[Key, Noise]:
        return {}

    def control(
        self,
        recipe: Recipe,
        *,
        elsewhere: Recipe | None = None,
        positions: frozenset[int] | None = None,
        altered: tuple[Constant, float] | None = None,
    ) -> Mapping[Key, Tensor]:
        return {}

    def altered(self, constant: Constant, factor: float) -> Mapping[Key, Tensor]:
        return {}


def judged(replays: Measured, cand: Tensor) -> EdgeJudge:
    value = LogicalTensor(data=cand, parts=(), dims=("token", "channel"))
    made = Edge(path="", dtype="float32", shape=tuple(cand.shape), read=lambda _: value)
    call = TraceCall(
        module="m",
        candidate_module="m",
        n=0,
        parent=None,
        order=0,
        inputs={},
        outputs={"": made},
        values={},
    )
    view = View(ranks=(0,))
    trace = Trace(calls={("m", 0): call}, parameters={}, candidate_parameters={}, views=(view,), world_size=1)
    edge = CodeEdge(
        key=(None, ""), into=None, path="", order=1, exact=EXACT, depth=3, sigma=None, bound=None, cand=value
    )
    code = Code(
        call=call,
        module=nn.Identity(),
        edges=(edge,),
        choices=(),
        has_children=False,
        inlined=(),
        constants=(),
        replays=replays,
    )
    judge = EdgeJudge(trace=trace, view=view, policy=policy_of(FUSED), bench=Bench(elements=512))
    judge.judge(code)
    return judge


def verdict_of(replays: Measured, cand: Tensor) -> Verdict:
    (judgement,) = judged(replays, cand).said.judgements
    return judgement.verdict


def with_one_off(by: float) -> Tensor:
    cand = EXACT.float().clone()
    cand[3, 5] += by
    return cand


def test_an_element_that_better_measured_noise_explains_is_aligned() -> None:
    replays = Measured(few=1e-5, many=3e-5)
    assert verdict_of(replays, with_one_off(1e-4)) is Verdict.ALIGNED
    assert replays.asked == [False, True]


def test_an_element_that_stays_outside_diverges() -> None:
    replays = Measured(few=1e-5, many=1e-5)
    assert verdict_of(replays, with_one_off(1e-4)) is Verdict.DIVERGENT
    assert True in replays.asked


@pytest.mark.parametrize(
    "cand",
    [
        pytest.param(with_one_off(1e-2), id="far outside"),
        pytest.param(EXACT.float() * (1 + 1e-4), id="everywhere"),
        pytest.param(EXACT.float(), id="inside"),
    ],
)
def test_clear_cases_are_not_measured_again(cand: Tensor) -> None:
    replays = Measured(few=1e-5, many=1.0)
    verdict_of(replays, cand)
    assert True not in replays.asked


def test_an_element_that_far_runs_reach_is_aligned_and_said_to_be_undecided() -> None:
    judge = judged(Measured(few=1e-5, many=1e-5, far=0.6), with_one_off(0.5))
    (judgement,) = judge.said.judgements
    assert judgement.verdict is Verdict.ALIGNED
    assert "1 elements are decided by rounding alone" in judgement.note
    assert "a fault in 1 of 512 elements of its output" in [x.what for x in judge.said.unobservable]


@pytest.mark.parametrize(
    ("far", "cand"),
    [
        pytest.param(0.4, with_one_off(0.5), id="out of reach"),
        pytest.param(0.6, EXACT.float() + 0.5, id="everywhere"),
    ],
)
def test_far_runs_excuse_neither_what_they_do_not_reach_nor_whole_edges(far: float, cand: Tensor) -> None:
    assert verdict_of(Measured(few=1e-5, many=1e-5, far=far), cand) is Verdict.DIVERGENT
