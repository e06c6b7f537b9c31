"""All checks of a run: policy, roll-up, gaps, and what several views say."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.align.build import Recorder
from tests.checks.build import captured, check, feed, traced
from validator.align.builder import build_trace
from validator.align.traces import Trace, View
from validator.capturing.records import RankCapture
from validator.checks.engine import policy_of, roll_up, run_checks
from validator.checks.findings import Arm, Check, Evidence, Finding, Outcome, Verdict
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe

WIDTH = 32


def test_nothing_declared_allows_fused_and_eager_and_tries_looser_ones_strictest_first() -> None:
    policy = policy_of(None)
    assert policy.allowed == (FUSED, EAGER)
    caches = [name for name, recipe in RECIPES.items() if recipe.cache != "storage"]
    known = [name for name in RECIPES if not name.endswith("-reduce") and name not in caches]
    assert [recipe.name for recipe in policy.others] == known[2:]
    assert [recipe.name for recipe in policy.caches] == caches
    assert all(recipe == RECIPES[recipe.name] for recipe in (*policy.others, *policy.caches))


def test_a_declared_cache_is_that_of_every_allowed_recipe_and_others_are_tried() -> None:
    mine = Recipe(name="mine", inner="storage", cache="int8", cache_scale=0.5)
    policy = policy_of(mine)
    assert policy.allowed == (Recipe(name="fused", cache="int8", cache_scale=0.5), mine)
    assert {(recipe.cache, recipe.cache_scale) for recipe in policy.others} == {("int8", 0.5)}
    caches = [name for name, recipe in RECIPES.items() if recipe.cache != "storage"]
    assert [recipe.name for recipe in policy.caches] == ["eager", *caches]


def test_a_declared_recipe_allows_itself_and_what_is_stricter() -> None:
    assert policy_of(FUSED).allowed == (FUSED,)
    assert policy_of(FUSED).others[0] == EAGER
    assert policy_of(EAGER) == policy_of(None)
    tf32 = RECIPES["tf32"]
    assert policy_of(tf32).allowed == (FUSED, EAGER, tf32)
    narrow = next(r for r in policy_of(tf32).others if r.name == "bf16-partials")
    assert narrow == replace(RECIPES["bf16-partials"], factors="tf32")


def test_what_is_declared_of_ranks_and_blocks_holds_for_the_stricter_recipes_as_well() -> None:
    mine = Recipe(name="mine", inner="storage", reduce="float32", block=64)
    fused, declared = policy_of(mine).allowed
    assert fused == Recipe(name="fused", reduce="float32", block=64)
    assert declared == mine
    loosened = {recipe.name: recipe for recipe in policy_of(mine).others}
    assert next(iter(loosened)) == "bf16-reduce"
    assert loosened["bf16-reduce"] == replace(mine, name="bf16-reduce", reduce="bfloat16")
    assert loosened["tf32"].block == 64


def test_a_recipe_that_promises_more_than_float32_is_tried_against_fused_first() -> None:
    mine = Recipe(name="mine", accumulate="float64")
    policy = policy_of(mine)
    assert policy.allowed == (mine,)
    assert policy.others[:2] == (FUSED, EAGER)


def finding(verdict: Verdict, order: int = 0) -> Finding:
    return Finding(
        module="mlp",
        candidate_module="mlp",
        check=Check.FUNCTION,
        verdict=verdict,
        arm=Arm.MAX,
        summary="",
        evidence=Evidence(),
        order=order,
    )


DIVERGENT, UNDECLARED = finding(Verdict.DIVERGENT), finding(Verdict.UNDECLARED_PRECISION)


@pytest.mark.parametrize(
    ("findings", "kept", "reasons", "verdict"),
    [
        ((), (), (), Verdict.ALIGNED),
        ((), (), ("no proof",), Verdict.INCONCLUSIVE),
        ((), ("no proof",), (), Verdict.INCONCLUSIVE),
        ((UNDECLARED,), (), (), Verdict.UNDECLARED_PRECISION),
        ((UNDECLARED,), (), ("no proof",), Verdict.UNDECLARED_PRECISION),
        ((DIVERGENT,), (), (), Verdict.DIVERGENT),
        ((DIVERGENT,), (), ("no proof",), Verdict.DIVERGENT),
        ((UNDECLARED, DIVERGENT), (), (), Verdict.DIVERGENT),
        ((DIVERGENT, UNDECLARED), ("no proof",), ("nor output",), Verdict.DIVERGENT),
    ],
)
def test_a_runs_verdict_is_the_worst_that_was_said(
    findings: Sequence[Finding], kept: Sequence[str], reasons: Sequence[str], verdict: Verdict
) -> None:
    outcome = Outcome(
        verdict=Verdict.ALIGNED, findings=tuple(findings), judgements=(), why_inconclusive=tuple(kept)
    )
    rolled = roll_up(outcome, reasons)
    assert rolled.verdict is verdict
    assert rolled.why_inconclusive == (*kept, *reasons)
    assert roll_up(rolled).verdict is verdict


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return hidden_states + self.down(torch.relu(self.up(hidden_states)))


def hidden() -> Tensor:
    return torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()


def judged(trace: Trace, reference: nn.Module | None = None) -> Outcome:
    return run_checks(
        reference=reference or Model(),
        trace=trace,
        run=feed({"hidden_states": hidden()}),
        policy=policy_of(None),
    )


def healthy() -> Trace:
    return traced(Model(), Model().bfloat16(), {"hidden_states": hidden()})


def test_a_healthy_run_is_aligned_with_nothing_left_to_say() -> None:
    outcome = judged(healthy())
    assert outcome.verdict is Verdict.ALIGNED
    assert outcome.findings == ()
    assert outcome.unchecked == ()
    assert outcome.why_inconclusive == ()
    assert outcome.notes == ()
    orders = [j.order for j in outcome.judgements]
    assert orders == sorted(orders)
    assert outcome.judgements[0].check is Check.PARAMETER


def test_findings_come_parameters_first_then_in_execution_order() -> None:
    candidate = Model().bfloat16()
    with torch.no_grad():
        candidate.down.weight *= 1.5
        candidate.up.bias += 1
    outcome = check(Model(), candidate, {"hidden_states": hidden()})
    assert [(f.check, f.module) for f in outcome.findings] == [
        (Check.PARAMETER, "up"),
        (Check.PARAMETER, "down"),
        (Check.FUNCTION, "up"),
        (Check.FUNCTION, "down"),
    ]


def without(trace: Trace, module: str) -> Trace:
    calls = {key: call for key, call in trace.calls.items() if key[0] != module}
    return replace(trace, calls=calls, unmatched_reference=(module,))


def test_a_module_that_its_parents_check_ran_through_counts_as_judged() -> None:
    outcome = judged(without(healthy(), "up"))
    assert outcome.verdict is Verdict.ALIGNED
    assert outcome.notes == ("fired in the reference but not in the candidate: up",)


def test_without_the_models_output_nothing_is_proven() -> None:
    trace = healthy()
    root = replace(trace.calls["", 0], outputs={})
    outcome = judged(replace(trace, calls={**trace.calls, ("", 0): root}))
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "the model's output was judged by no check" in outcome.why_inconclusive


def test_a_module_with_parameters_that_nothing_judged_makes_the_run_inconclusive() -> None:
    outcome = judged(without(without(healthy(), "up"), ""))
    assert outcome.verdict is Verdict.INCONCLUSIVE
    trace = healthy()
    blind = replace(trace.calls["up", 0], outputs={})
    outcome = judged(replace(trace, calls={**trace.calls, ("up", 0): blind}))
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert outcome.why_inconclusive == ("no check judged up",)


def test_problems_of_the_trace_are_unchecked_and_told_once() -> None:
    trace = healthy()
    problem = ("down", "input: rank 1 holds nothing")
    outcome = judged(replace(trace, problems=(problem, problem)))
    assert [(u.module, u.why) for u in outcome.unchecked] == [problem]


def test_names_on_one_side_alone_are_notes_with_three_of_them_shown() -> None:
    trace = replace(
        healthy(),
        unmatched_candidate=("a", "b", "c", "d", "e"),
        unmatched_parameters=(("x.weight",), ("y.scale",)),
    )
    assert judged(trace).notes == (
        "fired in the candidate but not in the reference: a, b, c and 2 more",
        "parameters of the reference alone: x.weight",
        "parameters of the candidate alone: y.scale",
    )


def test_progress_counts_every_call_once() -> None:
    told: list[tuple[int, int]] = []
    run_checks(
        reference=Model(),
        trace=healthy(),
        run=feed({"hidden_states": hidden()}),
        policy=policy_of(None),
        progress=lambda done, total: told.append((done, total)),
    )
    assert {total for _, total in told} == {3}
    assert [done for done, _ in told][-1] == 3


# Views


def on_ranks(
    world: int = 2, *, down_factor: dict[int, float] | None = None, up_factor: float = 1.0
) -> list[RankCapture]:
    """Run the model on every rank alike, as data that is replicated."""
    captures = []
    for rank in range(world):
        model, x = Model().bfloat16(), hidden()
        recorder = Recorder(rank)
        for name, parameter in model.named_parameters():
            recorder.parameter(name, parameter)
        with torch.no_grad(), recorder.call("", {"hidden_states": x}) as out:
            up = model.up(x) * up_factor
            recorder.leaf("up", x, up)
            down = model.down(torch.relu(up)) * (down_factor or {}).get(rank, 1.0)
            recorder.leaf("down", torch.relu(up), down)
            out[""] = x + down
        captures.append(recorder.capture())
    return captures


def judged_on_ranks(captures: list[RankCapture]) -> tuple[Trace, Outcome]:
    trace = build_trace(cand=captures, ref=captured(Model(), {"hidden_states": hidden().float()}))
    return trace, judged(trace)


def test_ranks_that_agree_share_a_view() -> None:
    trace, outcome = judged_on_ranks(on_ranks())
    assert trace.views == (View(ranks=(0, 1)),)
    assert outcome.verdict is Verdict.ALIGNED


def test_a_fault_on_one_rank_is_one_finding_that_names_it() -> None:
    trace, outcome = judged_on_ranks(on_ranks(down_factor={1: 1.1}))
    assert len(trace.views) == 2
    assert [(f.check, f.module, f.rank) for f in outcome.findings] == [(Check.FUNCTION, "down", 1)]


def test_a_fault_on_every_rank_is_one_finding_of_none_in_particular() -> None:
    _, outcome = judged_on_ranks(on_ranks(up_factor=1.1))
    assert [(f.check, f.module, f.rank) for f in outcome.findings] == [(Check.FUNCTION, "up", None)]


def test_a_fault_that_every_view_sees_is_merged_beside_one_of_one_rank() -> None:
    _, outcome = judged_on_ranks(on_ranks(up_factor=1.1, down_factor={1: 1.1}))
    assert [(f.module, f.rank) for f in outcome.findings] == [("up", None), ("down", 1)]
    edges = [(j.check, j.module, j.into, j.path) for j in outcome.judgements if j.check is not Check.REPLICA]
    assert len(edges) == len(set(edges))


def test_a_parameter_that_one_rank_has_wrong_names_the_rank() -> None:
    captures = on_ranks()
    wrong = copy.deepcopy(Model().bfloat16().up.weight.detach())
    wrong[0, 0] += 1
    recorder = Recorder(1)
    recorder.parameter("up.weight", wrong)
    parameters = {**captures[1].parameters, **recorder.capture().parameters}
    _, outcome = judged_on_ranks([captures[0], replace(captures[1], parameters=parameters)])
    assert [(f.check, f.module, f.rank) for f in outcome.findings if f.check is Check.PARAMETER] == [
        (Check.PARAMETER, "up", 1)
    ]


class Counted(nn.Module):
    """Keeps a running mean of what it is given, as normalisation layers and caches do."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.mean(dim=(0, 1)), alpha=0.1)
        return x - self.mean


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_a_buffer_that_the_code_writes_is_judged_by_what_it_does(start: float) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Counted())
    x = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(0))
    given = {"input": x.bfloat16().float()}
    candidate = copy.deepcopy(model).bfloat16()
    candidate[1].mean.fill_(start)
    outcome = run_checks(
        reference=model,
        trace=build_trace(
            cand=[captured(candidate, {"input": x.bfloat16()})], ref=captured(copy.deepcopy(model), given)
        ),
        run=feed(given),
        policy=policy_of(None),
    )
    assert {found.module for found in outcome.findings} == ({"1"} if start else set())
    assert not model[1].mean.any()
