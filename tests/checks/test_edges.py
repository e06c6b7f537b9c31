"""From code to judgements: recipes, and sums over ranks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import validator
from tests.align.build import Recorder
from tests.checks.build import captured, check, feed, traced
from validator.align.builder import build_trace
from validator.align.traces import Trace, View
from validator.capturing.records import RankCapture
from validator.checks.edges import EdgeJudge
from validator.checks.engine import policy_of, run_checks
from validator.checks.findings import Arm, Check, Finding, Outcome, Verdict
from validator.checks.judge import Bench
from validator.checks.policy import Policy
from validator.checks.walk import walk
from validator.numerics.contractions import Accumulation, Order, sum_products
from validator.numerics.formats import FORMATS
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe

WIDTH, INNER = 32, 64


def hidden(*shape: int) -> Tensor:
    return torch.randn(*(shape or (4, 32)), WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()


class Gate(nn.Module):
    """Several operators in a row, each of which eager code rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x * self.weight) * 1.3
        return functional.silu(y * 0.7) * x - y * 0.4


class FusedGate(Gate):
    """The same in one kernel, that keeps float32 inside."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        w, x32 = self.weight.float(), x.float()
        y = torch.tanh(x32 * w) * 1.3
        return ((functional.silu(y * 0.7) * x32 - y * 0.4) * self.factor).to(x.dtype)


class WrongGate(FusedGate):
    factor = 1.03


def gate(kind: type[Gate]) -> nn.Module:
    return kind().bfloat16()


@pytest.mark.parametrize(
    ("kind", "declared", "verdict", "recipe"),
    [
        (Gate, None, Verdict.ALIGNED, "eager"),
        (Gate, EAGER, Verdict.ALIGNED, "eager"),
        (Gate, FUSED, Verdict.UNDECLARED_PRECISION, "eager"),
        (FusedGate, None, Verdict.ALIGNED, "fused"),
        (FusedGate, EAGER, Verdict.ALIGNED, "fused"),
        (FusedGate, FUSED, Verdict.ALIGNED, "fused"),
        (WrongGate, None, Verdict.DIVERGENT, "eager"),
        (WrongGate, FUSED, Verdict.DIVERGENT, "fused"),
    ],
)
def test_a_run_is_explained_by_the_strictest_recipe_that_does(
    kind: type[Gate], declared: Recipe | None, verdict: Verdict, recipe: str
) -> None:
    outcome = check(Gate(), gate(kind), {"x": hidden()}, recipe=declared)
    assert outcome.verdict is verdict
    (output,) = [j for j in outcome.judgements if j.into is None and j.check is Check.FUNCTION]
    assert output.verdict is verdict
    assert output.recipe == recipe
    assert output.dtype == "bfloat16"


def test_an_undeclared_precision_names_the_recipe_and_keeps_the_declared_ones_evidence() -> None:
    outcome = check(Gate(), gate(Gate), {"x": hidden()}, recipe=FUSED)
    (finding,) = outcome.findings
    assert finding.verdict is Verdict.UNDECLARED_PRECISION
    assert finding.recipe == "eager"
    assert finding.arm is Arm.MAX
    assert finding.evidence.max_over_band > 1
    assert "the recipe 'eager' alone, which was not declared" in finding.summary


def test_a_divergence_keeps_the_evidence_of_the_last_allowed_recipe() -> None:
    finding = check(Gate(), gate(WrongGate), {"x": hidden()}, recipe=FUSED).findings[0]
    assert (finding.recipe, finding.verdict) == ("fused", Verdict.DIVERGENT)
    wider = check(Gate(), gate(WrongGate), {"x": hidden()}, recipe=EAGER).findings[0]
    assert wider.evidence.max_over_band < finding.evidence.max_over_band


class Leaf(nn.Module):
    """One operator: no recipe can differ in it."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.linear.weight, std=0.2, generator=torch.Generator().manual_seed(1))
        nn.init.normal_(self.linear.bias, generator=torch.Generator().manual_seed(2))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.factor)


def test_a_single_operator_is_never_undeclared_precision() -> None:
    outcome = check(Leaf(), Leaf(1.05).bfloat16(), {"x": hidden()}, recipe=FUSED)
    assert {f.verdict for f in outcome.findings} == {Verdict.DIVERGENT}


def test_what_kind_of_check_an_edge_had() -> None:
    outcome = check(Leaf(), Leaf().bfloat16(), {"x": hidden()})
    assert [
        (j.check, j.module, j.into, j.path) for j in outcome.judgements if j.check is not Check.PARAMETER
    ] == [
        (Check.INPUT, "", None, "x"),
        (Check.WIRING, "", "linear", "input"),
        (Check.FUNCTION, "linear", None, ""),
        (Check.WIRING, "", None, ""),
    ]


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.ALIGNED), (1.01, Verdict.DIVERGENT)])
def test_what_a_run_is_fed_with_may_be_rounded_once_and_no_more(
    factor: float, verdict: Verdict, tmp_path: Path
) -> None:
    given = hidden().float() * 1.003
    with validator.capture(candidate := Leaf().bfloat16(), tmp_path / "candidate.h5"):
        candidate((given * factor).bfloat16())
    result = validator.check(
        reference=Leaf(), candidate=tmp_path / "candidate.h5", inputs={"x": given}, recipe=FUSED
    )
    assert result.verdict is verdict
    assert {finding.check for finding in result.findings} <= {Check.INPUT}


class Positions(nn.Module):
    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.child = Counts(start)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return x * (1 + self.child(attention_mask)[..., None])


class Counts(nn.Module):
    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start

    def forward(self, kept: Tensor) -> Tensor:
        return kept.cumsum(-1) - 1 + self.start


def test_integers_are_exact() -> None:
    inputs = {"x": hidden(), "attention_mask": torch.ones(4, 32, dtype=torch.int64)}
    assert check(Positions(), Positions(), inputs).verdict is Verdict.ALIGNED
    (finding,) = check(Positions(), Positions(1), inputs).findings
    assert (finding.check, finding.arm, finding.module) == (Check.EXACT, Arm.EXACT, "child")


class Routes(nn.Module):
    """A router that chooses the two greatest of 32, and adds `bump` to some scores to lead it astray."""

    def __init__(self, bump: float = 0.0) -> None:
        super().__init__()
        self.router = Router(bump)

    def forward(self, x: Tensor) -> Tensor:
        return self.router(x)[0]


class Router(nn.Module):
    def __init__(self, bump: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.bump = bump

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.tanh(x * self.weight)
        indices = (scores + self.bump * (torch.arange(WIDTH) == 3)).topk(2, -1).indices
        return scores.gather(-1, indices), indices


def test_a_choice_between_near_ties_is_the_devices() -> None:
    """In bfloat16 many of 32 saturated scores are equal."""
    x = hidden() * 3
    outcome = check(Routes(), Routes().bfloat16(), {"x": x})
    assert outcome.verdict is Verdict.ALIGNED
    oracle = torch.tanh(x.double() * torch.linspace(0.5, 1.5, WIDTH)).topk(2, -1).indices
    chosen = torch.tanh(x * torch.linspace(0.5, 1.5, WIDTH).bfloat16()).topk(2, -1).indices
    assert not torch.equal(oracle, chosen)


def test_a_choice_that_is_clearly_worse_is_a_fault() -> None:
    outcome = check(Routes(), Routes(0.5).bfloat16(), {"x": hidden()})
    assert [(f.check, f.module, f.path) for f in outcome.findings] == [(Check.EXACT, "router", "topk")]
    assert outcome.findings[0].evidence.outside > 10


def test_padded_tokens_are_not_judged() -> None:
    class Padded(nn.Module):
        def __init__(self, fill: float = 0.0) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            nn.init.constant_(self.linear.weight, 0.25)
            nn.init.zeros_(self.linear.bias)
            self.fill = fill

        def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
            kept = attention_mask[..., None].bool()
            return self.linear(torch.where(kept, hidden_states, torch.full_like(hidden_states, self.fill)))

    mask = torch.ones(4, 32, dtype=torch.int64)
    inputs = {"hidden_states": hidden(), "attention_mask": mask}
    candidate = Padded(7.0).bfloat16()
    candidate.load_state_dict(Padded().state_dict())
    mask[2, 20:] = 0
    assert check(Padded(), candidate, inputs).verdict is Verdict.ALIGNED
    mask[2, 20:] = 1
    assert check(Padded(), candidate, inputs).verdict is Verdict.ALIGNED


# Sums over ranks


class Mlp(nn.Module):
    """up is sharded by columns, down by rows."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=bias)
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.relu(self.up(x)))


Change = Callable[[int, Tensor], Tensor]
LINEAR = "torch.nn.modules.linear.Linear"


def sharded(
    reference: Mlp,
    x: Tensor,
    *,
    world: int = 2,
    bias_on: Sequence[int] | None = None,
    partial: Change = lambda rank, t: t,
    reduced: Change = lambda rank, t: t,
) -> list[RankCapture]:
    """Run `Mlp` on ranks in bfloat16; `bias_on` adds the bias before the sum on those ranks, else after it.

    `partial` changes what enters the sum, before it is rounded; `reduced` what leaves it.
    """
    ranks = tuple(range(world))
    bf16 = torch.bfloat16
    ups = reference.up.weight.detach().to(bf16).chunk(world, 0)
    downs = reference.down.weight.detach().to(bf16).chunk(world, 1)
    bias = None if reference.down.bias is None else reference.down.bias.detach().to(bf16)
    hiddens = [x @ w.T for w in ups]
    terms = []
    for rank in ranks:
        own = bias if bias_on is not None and rank in bias_on else None
        term = functional.linear(
            functional.relu(hiddens[rank]).float(), downs[rank].float(), None if own is None else own.float()
        )
        terms.append(partial(rank, term).to(bf16))
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    captures = []
    for rank in ranks:
        left = reduced(rank, total)
        out = left + bias if bias is not None and bias_on is None else left
        recorder = Recorder(rank)
        recorder.parameter("up.weight", ups[rank])
        recorder.parameter("down.weight", downs[rank])
        if bias is not None:
            recorder.parameter("down.bias", bias)
        with recorder.call("", {"x": x}) as root:
            recorder.leaf("up", x, hiddens[rank], LINEAR)
            with recorder.call("down", {"input": functional.relu(hiddens[rank])}, LINEAR) as row:
                recorder.reduce(terms[rank], left, ranks)
                row[""] = out
            root[""] = out
        captures.append(recorder.capture())
    return captures


def judged(reference: Mlp, captures: list[RankCapture], x: Tensor) -> Outcome:
    trace = build_trace(cand=captures, ref=captured(reference, {"x": x.float()}))
    return run_checks(reference=reference, trace=trace, run=feed({"x": x}), policy=policy_of(None))


def kinds(findings: Sequence[Finding]) -> list[tuple[str, str, int | None]]:
    return [(f.check.value, f.module, f.rank) for f in findings]


@pytest.mark.parametrize("bias_on", [None, [0], [1]], ids=["after the sum", "rank 0", "rank 1"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_bias_added_once_is_healthy_wherever_it_is_added(bias_on: list[int] | None, world: int) -> None:
    x, reference = hidden(), Mlp()
    outcome = judged(reference, sharded(reference, x, world=world, bias_on=bias_on), x)
    assert outcome.findings == ()
    assert outcome.verdict is Verdict.ALIGNED
    partials = [j for j in outcome.judgements if j.check is Check.PARTIAL]
    assert [(j.module, j.rank) for j in partials] == [("down", rank) for rank in range(world)]


def test_a_partial_result_that_is_wrong_names_its_rank() -> None:
    x, reference = hidden(), Mlp()
    captures = sharded(reference, x, partial=lambda rank, t: t * 1.1 if rank == 1 else t)
    outcome = judged(reference, captures, x)
    assert kinds(outcome.findings) == [("partial", "down", 1), ("function", "down", None)]
    signature = outcome.findings[0].signature
    assert signature is not None
    assert signature.kind == "factor"
    assert signature.parameters["factor"] == pytest.approx(1.1, rel=0.01)
    assert "on rank 1" in outcome.findings[0].summary


def narrow_terms(reference: Mlp, x: Tensor, *ranks: int) -> list[RankCapture]:
    """Run `Mlp` on two ranks, of which some add up their products in bfloat16."""
    how = Accumulation(fmt=FORMATS["bfloat16"], order=Order.SEQUENTIAL)

    def term(rank: int, healthy: Tensor) -> Tensor:
        if rank not in ranks:
            return healthy
        up, down = (
            layer.weight.detach().bfloat16().chunk(2, dim)[rank]
            for layer, dim in ((reference.up, 0), (reference.down, 1))
        )
        return sum_products(functional.relu(x @ up.T).double(), down.T.double(), how)

    return sharded(reference, x, partial=term)


@pytest.mark.parametrize("bias", [False, True], ids=["without a bias", "with a bias"])
@pytest.mark.parametrize("ranks", [(0, 1), (1,)], ids=["both ranks", "rank 1"])
def test_a_rank_that_adds_up_in_bf16_is_named_with_the_recipe_and_the_operator(
    ranks: tuple[int, ...], bias: bool
) -> None:
    x, reference = hidden(), Mlp(bias=bias)
    trace = build_trace(cand=narrow_terms(reference, x, *ranks), ref=captured(reference, {"x": x.float()}))

    def findings(recipe: Recipe | None) -> tuple[Finding, ...]:
        run = feed({"x": x})
        return run_checks(reference=reference, trace=trace, run=run, policy=policy_of(recipe)).findings

    assert findings(RECIPES["bf16-accumulate"]) == ()
    found = findings(None)
    assert kinds(found) == [*(("partial", "down", rank) for rank in ranks), ("function", "down", None)]
    assert {(f.verdict, f.recipe, f.op) for f in found} == {
        (Verdict.UNDECLARED_PRECISION, "bf16-accumulate", "mm")
    }


def test_a_bias_on_every_rank_is_named_as_such() -> None:
    x, reference = hidden(), Mlp()
    outcome = judged(reference, sharded(reference, x, bias_on=[0, 1]), x)
    assert kinds(outcome.findings) == [("function", "down", None)]
    signature = outcome.findings[0].signature
    assert signature is not None
    assert (signature.kind, signature.parameters["times"]) == ("bias_per_rank", 2)


def test_a_bias_left_out_is_named_as_such() -> None:
    x, reference = hidden(), Mlp()
    outcome = judged(reference, sharded(reference, x, bias_on=[]), x)
    signature = outcome.findings[0].signature
    assert signature is not None
    assert signature.kind == "bias_missing"


@pytest.mark.parametrize(
    ("factor", "kind"), [(2.0, "double_reduction"), (0.5, "missing_reduction"), (1.5, "factor")]
)
def test_a_sum_that_is_off_by_a_factor_is_named(factor: float, kind: str) -> None:
    x, reference = hidden(), Mlp(bias=False)
    outcome = judged(reference, sharded(reference, x, reduced=lambda rank, t: t * factor), x)
    assert kinds(outcome.findings) == [("function", "down", None)]
    signature = outcome.findings[0].signature
    assert signature is not None
    assert signature.kind == kind
    assert signature.parameters["factor"] == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize("bias", [False, True], ids=["without a bias", "with a bias"])
def test_a_sum_that_no_rank_took_is_told_by_the_terms(bias: bool) -> None:
    x, reference = hidden(), Mlp(bias=bias)
    terms: dict[int, Tensor] = {}

    def kept(rank: int, term: Tensor) -> Tensor:
        terms[rank] = term.bfloat16()
        return term

    captures = sharded(reference, x, partial=kept, reduced=lambda rank, total: terms[rank])
    (found,) = [f for f in judged(reference, captures, x).findings if f.check is Check.FUNCTION]
    signature = found.signature
    assert signature is not None
    assert (signature.kind, signature.parameters) == ("missing_reduction", {"own_term": True})


def test_a_sum_over_some_of_the_ranks_names_those_that_are_missing() -> None:
    x, reference = hidden(), Mlp(bias=False)
    terms: dict[int, Tensor] = {}

    def kept(rank: int, term: Tensor) -> Tensor:
        terms[rank] = term.bfloat16()
        return term

    captures = sharded(reference, x, world=4, partial=kept, reduced=lambda rank, total: terms[0] + terms[1])
    outcome = judged(reference, captures, x)
    assert kinds(outcome.findings) == [("function", "down", None)]
    signature = outcome.findings[0].signature
    assert signature is not None
    assert (signature.kind, signature.parameters) == (
        "missing_reduction",
        {"missing": [2, 3], "kept": [0, 1]},
    )
    assert "without what ranks 2, 3 gave" in outcome.findings[0].summary


class Experts(nn.Linear):
    """A module whose ranks' terms are known by what they gave alone."""


class MlpOfExperts(Mlp):
    def __init__(self) -> None:
        super().__init__(bias=False)
        down = Experts(INNER, WIDTH, bias=False)
        down.weight = self.down.weight
        self.down = down


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.roll(1, -2), "each row is the one 1 position before it in what rank 1 gave to the sum"),
        (lambda t: -t, "the sign flipped in what rank 1 gave to the sum"),
        (lambda t: 0 * t, "zeros, never written or dropped in what rank 1 gave to the sum"),
    ],
    ids=["other tokens", "sign", "zeros"],
)
def test_a_wrong_term_of_any_module_is_told_by_the_others(
    change: Callable[[Tensor], Tensor], words: str
) -> None:
    x, reference = hidden(16), MlpOfExperts()
    captures = sharded(reference, x, partial=lambda rank, t: change(t) if rank == 1 else t)
    (found,) = judged(reference, captures, x).findings
    assert found.signature is not None
    assert found.signature.kind == "wrong_term"
    assert found.signature.parameters["rank"] == 1
    assert words in found.summary


def test_sums_kept_in_16_bits_are_explained_and_lost_terms_are_not() -> None:
    x, reference = hidden(), Mlp(bias=False)
    captures = sharded(reference, x, world=4)
    assert judged(reference, captures, x).verdict is Verdict.ALIGNED
    lost = sharded(reference, x, world=4, reduced=lambda rank, t: t * 0.75)
    assert judged(reference, lost, x).verdict is Verdict.DIVERGENT


def test_a_recipe_that_reduces_in_float32_is_stricter() -> None:
    x, reference = hidden(16, 64), Mlp(bias=False)
    trace = build_trace(cand=sharded(reference, x, world=8), ref=captured(reference, {"x": x.float()}))
    strict = Recipe(name="float32 sums", reduce="float32")
    assert (
        run_checks(
            reference=reference, trace=trace, run=feed({"x": x}), policy=Policy(allowed=(FUSED,))
        ).findings
        == ()
    )
    outcome = run_checks(
        reference=reference, trace=trace, run=feed({"x": x}), policy=Policy(allowed=(strict,))
    )
    assert ("function", "down", None) in kinds(outcome.findings)


def test_a_sum_over_ranks_in_bf16_is_named_where_the_recipe_forbids_it() -> None:
    x, reference = hidden(16, 64), Mlp(bias=False)
    trace = build_trace(cand=sharded(reference, x, world=8), ref=captured(reference, {"x": x.float()}))

    def outcome(recipe: Recipe | None) -> Outcome:
        return run_checks(reference=reference, trace=trace, run=feed({"x": x}), policy=policy_of(recipe))

    found = outcome(Recipe(name="float32 sums", reduce="float32")).findings
    assert [(f.module, f.into, f.verdict, f.recipe, f.op) for f in found] == [
        ("down", None, Verdict.UNDECLARED_PRECISION, "bf16-reduce", "all_reduce")
    ]
    assert outcome(RECIPES["bf16-reduce"]).findings == ()
    assert outcome(None).findings == ()


def test_a_missing_region_of_a_partial_is_left_to_the_function_check() -> None:
    x, reference = hidden(), Mlp()
    captures = sharded(reference, x)
    trace = build_trace(cand=captures, ref=captured(reference, {"x": x.float()}))
    call = trace.calls["down", 0]
    (partial,) = call.partials
    unknown = replace(partial, input_boxes={0: None, 1: None})
    trace = replace(trace, calls={**trace.calls, ("down", 0): replace(call, partials=(unknown,))})
    outcome = run_checks(reference=reference, trace=trace, run=feed({"x": x}), policy=policy_of(None))
    assert outcome.verdict is Verdict.ALIGNED
    assert not [j for j in outcome.judgements if j.check is Check.PARTIAL]


def judge_of(trace: Trace, policy: Policy) -> EdgeJudge:
    return EdgeJudge(trace=trace, view=View(ranks=(0,)), policy=policy, bench=Bench(elements=10**6))


def test_every_edge_has_one_judgement_whatever_it_says() -> None:
    reference, inputs = Gate(), {"x": hidden()}
    trace = traced(reference, gate(WrongGate), inputs)
    judge = judge_of(trace, policy_of(None))
    walk(
        reference=reference,
        trace=trace,
        view=View(ranks=(0,)),
        run=feed(inputs),
        judge=judge.judge,
        skip=judge.skip,
    )
    assert len(judge.said.judgements) == 2
    assert len(judge.said.findings) == 1
    assert judge.said.gaps == []


def test_an_edge_that_can_not_show_a_small_factor_is_unobservable_with_the_reason() -> None:
    reference, inputs = Gate(), {"x": hidden(1, 4)}
    trace = traced(reference, gate(Gate), inputs)
    judge = judge_of(trace, policy_of(None))
    walk(
        reference=reference,
        trace=trace,
        view=View(ranks=(0,)),
        run=feed(inputs),
        judge=judge.judge,
        skip=judge.skip,
    )
    on_edge = [u for u in judge.said.unobservable if u.what == "factor 1.01 on its output"]
    assert [(u.module, u.propose) for u in on_edge] == [("", "16 tokens or more")]
    assert "too few are independent for the gain test" in on_edge[0].why
    (output,) = [j for j in judge.said.judgements if j.smallest_gain is not None]
    assert output.smallest_gain == on_edge[0].smallest
    assert output.note == "too few independent elements for the gain test"
