"""The walk: every piece of code judged alone, on the candidate's own bits."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import ALL, check, feed, traced
from validator.align.traces import TraceCall
from validator.checks.findings import Arm, Check, Finding, Outcome, Verdict
from validator.checks.module_code import Code, Spread
from validator.checks.walk import walk
from validator.numerics.recipes import EAGER, FUSED, Recipe

WIDTH = 32


def hidden(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*(shape or (2, 16)), WIDTH, generator=torch.Generator().manual_seed(seed))


class Scale(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.factor


class Block(nn.Module):
    """Two children with code of its own before, between and after them."""

    def __init__(
        self, before: float = 1.0, between: float = 1.0, after: float = 1.0, inside: float = 1.0
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.norm = Scale(inside)
        self.before, self.between, self.after = before, between, after

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(torch.tanh(x) * 1.5 * self.before)
        z = self.up(functional.silu(y) * self.between)
        return (x + z) * self.after


class Model(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks or (Block(), Block()))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def never(call: TraceCall, why: str) -> None:
    pytest.fail(f"{call.module} was skipped: {why}")


def walked(reference: nn.Module, candidate: nn.Module, *inputs: dict[str, Any]) -> list[Code]:
    codes: list[Code] = []
    trace = traced(reference, candidate, *inputs)
    walk(reference=reference, trace=trace, view=ALL, run=feed(*inputs), judge=codes.append, skip=never)
    return codes


def spread(code: Code, recipe: Recipe) -> Spread:
    """Return the spread of code that has one edge."""
    assert code.replays is not None
    (edge,) = code.edges
    return code.replays.spread(recipe)[edge.key]


def narrow(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(torch.bfloat16)


def places(outcome: Outcome) -> list[tuple[str, str | None]]:
    return [(f.module, f.into) for f in outcome.findings if f.check is not Check.PARAMETER]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_healthy_candidate_is_aligned_at_every_edge(dtype: torch.dtype) -> None:
    reference = Model()
    outcome = check(reference, copy.deepcopy(reference).to(dtype), {"x": hidden().to(dtype)})
    assert outcome.verdict is Verdict.ALIGNED
    assert {(j.module, j.into) for j in outcome.judgements if j.check in (Check.WIRING, Check.FUNCTION)} == {
        ("", "blocks.0"),
        ("", "blocks.1"),
        ("", None),
        *((f"blocks.{i}", into) for i in (0, 1) for into in (f"blocks.{i}.norm", f"blocks.{i}.up", None)),
        *((f"blocks.{i}.{leaf}", None) for i in (0, 1) for leaf in ("norm", "up")),
    }


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ({"before": 1.05}, ("blocks.0", "blocks.0.norm")),
        ({"between": 1.05}, ("blocks.0", "blocks.0.up")),
        ({"after": 1.05}, ("blocks.0", None)),
        ({"inside": 1.05}, ("blocks.0.norm", None)),
    ],
    ids=["before a child", "between children", "after the children", "in a child"],
)
def test_a_fault_is_found_at_its_own_edge_and_at_no_other(
    fault: dict[str, float], place: tuple[str, str | None]
) -> None:
    outcome = check(Model(), narrow(Model(Block(**fault), Block())), {"x": hidden().bfloat16()})
    assert places(outcome) == [place]
    assert outcome.verdict is Verdict.DIVERGENT


def test_two_faults_are_two_findings_in_execution_order() -> None:
    candidate = narrow(Model(Block(between=1.1), Block(inside=0.9)))
    outcome = check(Model(), candidate, {"x": hidden().bfloat16()})
    assert places(outcome) == [("blocks.0", "blocks.0.up"), ("blocks.1.norm", None)]


def test_the_order_of_children_that_are_swapped_shows() -> None:
    class Swapped(Block):
        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(torch.tanh(x) * 1.5)
            return y + self.up(functional.silu(x))

    outcome = check(Model(), narrow(Model(Swapped(), Block())), {"x": hidden().bfloat16()})
    assert places(outcome) == [("blocks.0", "blocks.0.up"), ("blocks.0", None)]


class Shared(nn.Module):
    """One child under two names, called three times."""

    def __init__(self, third: float = 1.0) -> None:
        super().__init__()
        self.first = Scale()
        self.again = self.first
        self.third = third

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.again(self.first(x + 1) * 0.75) * 1.25 * self.third)


def test_a_module_called_several_times_is_judged_call_by_call() -> None:
    codes = walked(Shared(), narrow(Shared()), {"x": hidden().bfloat16()})
    assert [(code.call.module, code.call.n) for code in codes][:4] == [
        ("first", 0),
        ("again", 0),
        ("first", 1),
        ("", 0),
    ]
    outcome = check(Shared(), narrow(Shared(third=1.1)), {"x": hidden().bfloat16()})
    findings = [f for f in outcome.findings if f.check is Check.WIRING]
    assert [(f.module, f.into, f.call) for f in findings] == [("", "first", 0)]
    (wrong,) = [j for j in outcome.judgements if j.verdict is Verdict.DIVERGENT]
    assert wrong.into == "first"


@pytest.mark.parametrize("fault", [None, "inside", "between"])
def test_a_module_under_several_names_is_judged_under_the_right_one(fault: str | None) -> None:
    def model(factor: float = 1.0) -> Model:
        shared = Block(**({} if fault is None else {fault: factor}))
        return Model(Block(), shared, shared)

    outcome = check(model(), narrow(model(1.1)), {"x": hidden().bfloat16()})
    assert {j.module for j in outcome.judgements} >= {"blocks.1", "blocks.2", "blocks.2.norm", "blocks.2.up"}
    assert (
        places(outcome)
        == {
            None: [],
            "inside": [("blocks.1.norm", None), ("blocks.2.norm", None)],
            "between": [("blocks.1", "blocks.1.up"), ("blocks.2", "blocks.2.up")],
        }[fault]
    )


def test_several_runs_of_a_model_are_judged_one_by_one() -> None:
    inputs = [{"x": hidden(seed=i).bfloat16()} for i in range(3)]
    codes = walked(Model(Block()), narrow(Model(Block())), *inputs)
    assert [c.call.n for c in codes if c.call.module == "blocks.0"] == [0, 1, 2]
    assert check(Model(Block()), narrow(Model(Block())), *inputs).verdict is Verdict.ALIGNED


class InPlace(nn.Module):
    """Its child writes into what it is given; the parent goes on with that."""

    def __init__(self, inner: float = 1.0, outer: float = 1.0) -> None:
        super().__init__()
        self.child = Doubling(inner)
        self.outer = outer

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x) * 2
        self.child(y)
        return y * 0.7 * self.outer


class Doubling(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(self.weight * self.factor)
        return x


def test_an_argument_that_a_child_changes_in_place_is_seen_by_its_parent() -> None:
    assert check(InPlace(), narrow(InPlace()), {"x": hidden().bfloat16()}).verdict is Verdict.ALIGNED
    outcome = check(InPlace(), narrow(InPlace(outer=1.1)), {"x": hidden().bfloat16()})
    assert places(outcome) == [("", None)]
    outcome = check(InPlace(), narrow(InPlace(inner=1.1)), {"x": hidden().bfloat16()})
    assert ("child", None) in places(outcome)


class ThroughAView(nn.Module):
    """Changes what its child returned, which is a view of its own tensor."""

    def __init__(self, view: nn.Module, inner: float = 1.0, outer: float = 1.0) -> None:
        super().__init__()
        self.view = view
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.inner, self.outer = inner, outer

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x) * self.weight
        self.view(y).mul_(0.75 * self.inner)
        return y * 0.7 * self.outer


class Rows(nn.Module):
    """Returns a part of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)[1:, ..., ::2]


@pytest.mark.parametrize("view", [nn.Flatten(1), Rows(), nn.Identity()], ids=["flatten", "part", "identity"])
def test_a_change_through_a_view_that_a_child_returned_is_followed(view: nn.Module) -> None:
    inputs = {"x": hidden().bfloat16()}
    assert check(ThroughAView(view), narrow(ThroughAView(view)), inputs).verdict is Verdict.ALIGNED
    outcome = check(ThroughAView(view), narrow(ThroughAView(view, outer=1.1)), inputs)
    assert places(outcome) == [("", None)]
    outcome = check(ThroughAView(view), narrow(ThroughAView(view, inner=1.1)), inputs)
    assert places(outcome) == [("", None)]


@dataclass
class Output:
    state: Tensor
    extra: tuple[Tensor, ...] | None = None


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Structured(nn.Module):
    def __init__(self, kind: str, factor: float = 1.0) -> None:
        super().__init__()
        self.kind = kind
        self.child = Structure(kind, factor)

    def forward(self, x: Tensor) -> Tensor:
        made = self.child(x)
        if self.kind == "dict":
            return made["left"] + made["deep"]["right"]
        if self.kind == "dataclass":
            return made.state + made.extra[0]
        if self.kind == "named tuple":
            return made.left + made.right
        return made[0] + made[1][0]


class Structure(nn.Module):
    def __init__(self, kind: str, factor: float) -> None:
        super().__init__()
        self.kind, self.factor = kind, factor
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Any:
        left, right = x * self.weight, torch.tanh(x) * self.factor
        return {
            "dict": {"left": left, "deep": {"right": right}},
            "dataclass": Output(state=left, extra=(right,)),
            "named tuple": Pair(left, right),
            "tuple": (left, [right], None),
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "path"),
    [("dict", "deep/right"), ("dataclass", "extra/0"), ("named tuple", "right"), ("tuple", "1/0")],
)
def test_each_part_of_a_nested_output_is_an_edge(kind: str, path: str) -> None:
    inputs = {"x": hidden().bfloat16()}
    assert check(Structured(kind), narrow(Structured(kind)), inputs).verdict is Verdict.ALIGNED
    outcome = check(Structured(kind), narrow(Structured(kind, 1.1)), inputs)
    assert [(f.module, f.path) for f in outcome.findings] == [("child", path)]


class Masked(nn.Module):
    """Makes a mask for its child in a convention of its own."""

    def __init__(self, fill: float = -1e4, cut: int = 0) -> None:
        super().__init__()
        self.child = Attends()
        self.fill, self.cut = fill, cut

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril(-self.cut)
        mask = torch.zeros(keep.shape, dtype=x.dtype).masked_fill(~keep, self.fill)
        return self.child(x, attention_mask=mask)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        scores = (x * self.weight) @ x.mT + attention_mask
        return functional.softmax(scores, -1, dtype=torch.float32).to(x.dtype) @ x


def test_masks_are_left_to_the_reference() -> None:
    inputs = {"x": hidden(1, 8).bfloat16()}
    assert check(Masked(), narrow(Masked(fill=-3e38)), inputs).verdict is Verdict.ALIGNED
    outcome = check(Masked(), narrow(Masked(cut=1)), inputs)
    assert places(outcome) == [("child", None)]


class Fused(nn.Module):
    """The same as Block, whose `norm` it never calls."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.norm = Scale()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x) * 1.5 * self.norm.weight * self.factor
        return x + self.up(functional.silu(y))


def test_a_child_that_the_candidate_never_calls_is_part_of_its_parents_code() -> None:
    codes = {
        c.call.module: c for c in walked(Model(Block()), narrow(Model(Fused())), {"x": hidden().bfloat16()})
    }
    assert codes["blocks.0"].inlined == ("blocks.0.norm",)
    assert [e.into.module if e.into else None for e in codes["blocks.0"].edges] == ["blocks.0.up", None]
    inputs = {"x": hidden().bfloat16()}
    healthy = check(Model(Block()), narrow(Model(Fused())), inputs)
    assert healthy.verdict is Verdict.ALIGNED
    assert any("judged through blocks.0.norm" in j.note for j in healthy.judgements if j.module == "blocks.0")
    assert places(check(Model(Block()), narrow(Model(Fused(1.1))), inputs)) == [("blocks.0", "blocks.0.up")]


class Cache:
    """Keeps what it was given, and changes its own tensor in place."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None

    def update(self, x: Tensor) -> Tensor:
        self.seen = x * 1.0 if self.seen is None else self.seen.add_(x)
        return self.seen


class Caching(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.layer = CachingLayer(factor)

    def forward(self, x: Tensor, steps: int = 3) -> Tensor:
        cache, out = Cache(), x
        for _ in range(steps):
            out = self.layer(out, cache)
        return out


class CachingLayer(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        return torch.tanh(cache.update(x * self.weight)) * 1.5 * self.factor


def test_a_cache_is_as_it_was_before_the_call_in_every_replay() -> None:
    inputs = {"x": hidden().bfloat16()}
    codes = [c for c in walked(Caching(), narrow(Caching()), inputs) if c.call.module == "layer"]
    assert len(codes) == 3
    for code in codes:
        (edge,) = code.edges
        # Replays that kept adding to one cache would run away from the first run by whole units.
        assert float(spread(code, EAGER).sigma.max()) < 0.03
        assert float((spread(code, EAGER).control - edge.exact).abs().max()) < 0.06
    assert check(Caching(), narrow(Caching()), inputs).verdict is Verdict.ALIGNED
    assert places(check(Caching(), narrow(Caching(1.1)), inputs))[0] == ("layer", None)


def test_forward_is_restored_after_the_walk() -> None:
    reference, candidate = Model(), narrow(Model())
    reference.blocks[0].norm.forward = own_forward = reference.blocks[0].norm.forward  # type: ignore[method-assign]
    walked(reference, candidate, {"x": hidden().bfloat16()})
    owners = [name for name, module in reference.named_modules() if "forward" in module.__dict__]
    assert owners == ["blocks.0.norm"]
    assert reference.blocks[0].norm.forward is own_forward


@pytest.mark.parametrize("where", ["run", "judge"])
def test_forward_is_restored_after_an_error_too(where: str) -> None:
    reference, inputs = Model(), {"x": hidden().bfloat16()}
    trace = traced(reference, narrow(Model()), inputs)

    def broken_run(model: nn.Module) -> None:
        feed(inputs)(model)
        raise KeyError("run")

    def broken_judge(code: Code) -> None:
        raise KeyError("judge")

    run: Callable[[nn.Module], Any] = broken_run if where == "run" else feed(inputs)
    judge: Callable[[Code], None] = broken_judge if where == "judge" else lambda code: None
    with pytest.raises(KeyError, match=where):
        walk(reference=reference, trace=trace, view=ALL, run=run, judge=judge, skip=never)
    assert not [name for name, module in reference.named_modules() if "forward" in module.__dict__]
    # Nothing of the arithmetic is left behind either.
    assert type(torch.ones(2) + 1) is Tensor
    assert reference(hidden()).dtype == torch.float32


def test_the_reference_is_left_as_it_was() -> None:
    reference = Model()
    kept = copy.deepcopy(reference.state_dict())
    walked(reference, narrow(Model(Block(after=2.0), Block())), {"x": hidden().bfloat16()})
    assert all(torch.equal(kept[name], value) for name, value in reference.state_dict().items())


def test_what_the_run_returns_are_plain_tensors() -> None:
    reference, inputs = Model(), {"x": hidden().bfloat16()}
    trace = traced(reference, narrow(Model()), inputs)
    made: list[Tensor] = []
    codes: list[Code] = []
    run = lambda model: made.append(model(**inputs))  # noqa: E731
    walk(reference=reference, trace=trace, view=ALL, run=run, judge=codes.append, skip=never)
    assert type(made[0]) is Tensor
    assert made[0].dtype == torch.bfloat16


def test_the_oracles_parameters_are_the_references_rounded_once() -> None:
    """A stored weight that differs shows in the function check as well as in the parameter check."""
    candidate = narrow(Model())
    with torch.no_grad():
        candidate.blocks[0].norm.weight[3] += 0.125
    outcome = check(Model(), candidate, {"x": hidden().bfloat16()})
    assert [(f.check, f.module) for f in outcome.findings] == [
        (Check.PARAMETER, "blocks.0.norm"),
        (Check.FUNCTION, "blocks.0.norm"),
    ]
    assert all(f.where["channels"] == [3] for f in outcome.findings[1:])


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 3.3, WIDTH), persistent=False)
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * self.table.float()).to(x.dtype) * self.weight


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, WIDTH)
        nn.init.normal_(self.embed.weight, generator=torch.Generator().manual_seed(0))
        self.head = nn.Linear(WIDTH, 24, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


@pytest.mark.parametrize("missing", ["head.weight", "embed.weight"])
def test_a_shared_parameter_is_rounded_under_whichever_name_the_candidate_holds(missing: str) -> None:
    reference, inputs = Tied(), {"ids": torch.arange(24)}
    trace = traced(reference, narrow(reference), inputs)
    parameters = {name: e for name, e in trace.parameters.items() if name != missing}
    trace = dataclasses.replace(trace, parameters=parameters)
    codes: list[Code] = []
    walk(reference=reference, trace=trace, view=ALL, run=feed(inputs), judge=codes.append, skip=never)
    embedded = next(c for c in codes if c.call.module == "embed").edges[0]
    assert torch.equal(embedded.exact, embedded.cand.data.double())


def test_buffers_are_not_rounded_so_that_a_narrower_copy_shows() -> None:
    candidate = narrow(Buffered())
    assert candidate.table.dtype == torch.bfloat16
    outcome = check(Buffered(), candidate, {"x": hidden(8, 64).bfloat16()})
    assert places(outcome) == [("", None)]
    candidate.table = Buffered().table
    assert check(Buffered(), candidate, {"x": hidden(8, 64).bfloat16()}).verdict is Verdict.ALIGNED


def test_the_runs_inputs_are_judged_as_well() -> None:
    reference, inputs = Model(Block()), {"x": hidden().bfloat16()}
    trace = traced(reference, narrow(Model(Block())), inputs)
    judged: list[Code] = []
    other = {"x": hidden(seed=9).bfloat16()}
    walk(reference=reference, trace=trace, view=ALL, run=feed(other), judge=judged.append, skip=never)
    (edge,) = judged[-1].edges
    assert edge.into is judged[-1].call
    assert edge.depth == 0
    assert not torch.equal(edge.exact, edge.cand.data.double())


def test_a_leaf_has_one_edge_with_its_depth_and_an_exact_value() -> None:
    x = hidden().bfloat16()
    codes = {c.call.module: c for c in walked(Model(Block()), narrow(Model(Block())), {"x": x})}
    (edge,) = codes["blocks.0.up"].edges
    assert not codes["blocks.0.up"].has_children
    assert edge.depth == 1
    assert edge.sigma is not None
    linear = Block().up
    given = codes["blocks.0.up"].call.inputs["input"].read(ALL).data.double()
    weight, bias = (p.detach().bfloat16().double() for p in (linear.weight, linear.bias))
    assert torch.allclose(edge.exact, given @ weight.T + bias, rtol=1e-14, atol=1e-14)
    orders = [e.order for c in codes.values() for e in c.edges]
    assert len(set(orders)) == len(orders)


def test_a_spread_is_as_wide_as_the_recipe() -> None:
    code = next(
        c
        for c in walked(Model(Block()), narrow(Model(Block())), {"x": hidden().bfloat16()})
        if c.call.module == "blocks.0.norm"
    )
    eager, fused = spread(code, EAGER), spread(code, FUSED)
    assert float(eager.sigma.mean() / fused.sigma.mean()) > 1000
    for made in (eager, fused):
        assert torch.equal(made.control, made.control.bfloat16().double())


class Branching(nn.Module):
    """Goes right when two equal products round differently, which they do in a noisy run alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Scale(), Scale()

    def forward(self, x: Tensor) -> Tensor:
        differ = bool((x * 0.3 != x * 0.3).any())
        y = self.right(x) if differ else self.left(x)
        return y * 0.7 + x


def test_code_whose_replays_take_another_path_is_unchecked_with_the_reason() -> None:
    outcome = check(Branching(), narrow(Branching()), {"x": hidden().bfloat16()})
    assert ("", "a replay of its code took another path than the first run") in {
        (u.module, u.why) for u in outcome.unchecked
    }
    assert outcome.verdict is Verdict.INCONCLUSIVE


class Unrunnable(nn.Module):
    """Hands its values to code that knows nothing of float64."""

    def __init__(self, inside: float = 1.0, after: float = 1.0) -> None:
        super().__init__()
        self.norm = Scale(inside)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        y = torch.from_numpy(np.tanh(x.float().numpy())).to(x.dtype)
        return self.norm(y) * self.after


def test_code_that_can_not_run_in_float64_is_skipped_and_what_is_below_it_judged() -> None:
    inputs = {"x": hidden().bfloat16()}
    reference = Model(Unrunnable(), Block())
    healthy = check(reference, narrow(Model(Unrunnable(), Block())), inputs)
    assert healthy.findings == ()
    assert [u.module for u in healthy.unchecked] == ["blocks.0"]
    assert "can't run in float64" in healthy.unchecked[0].why
    below = check(reference, narrow(Model(Unrunnable(inside=1.1), Block(between=1.1))), inputs)
    assert places(below) == [("blocks.0.norm", None), ("blocks.1", "blocks.1.up")]


def test_code_and_its_edges_are_values() -> None:
    code = walked(Model(Block()), narrow(Model(Block())), {"x": hidden().bfloat16()})[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        code.has_children = True  # type: ignore[misc]


def test_a_first_finding_names_what_the_candidate_calls_it() -> None:
    outcome = check(Model(), narrow(Model(Block(inside=1.1), Block())), {"x": hidden().bfloat16()})
    finding: Finding = outcome.findings[0]
    assert finding.candidate_module == "blocks.0.norm"
    assert finding.arm is Arm.MAX
    assert "blocks.0.norm" in finding.summary


class Rotation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frequencies = torch.linspace(0.1, 1.0, WIDTH)  # no buffer, which `.to()` would round

    def forward(self, positions: Tensor) -> Tensor:
        return torch.cos(positions[..., None] * self.frequencies)


class Rotated(nn.Module):
    """Multiplies by a table of positions, one for all sequences or one for each."""

    def __init__(self, *, of_each: bool, stale: int = 0) -> None:
        super().__init__()
        self.rotation, self.scale = Rotation(), Scale()
        self.of_each, self.stale = of_each, stale

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])[None]
        if self.of_each:
            positions = positions.repeat(len(x), 1)
            positions[-1] += self.stale
        return self.scale(x * self.rotation(positions).to(x.dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("theirs", "ours"), [(False, True), (True, False)])
def test_positions_of_all_sequences_are_those_of_each(dtype: torch.dtype, theirs: bool, ours: bool) -> None:
    outcome = check(Rotated(of_each=theirs), Rotated(of_each=ours).to(dtype), {"x": hidden().to(dtype)})
    assert outcome.verdict is Verdict.ALIGNED
    assert [j.elements for j in judged(outcome, into="rotation")] == [2 * 16]
    assert [j.elements for j in judged(outcome, module="rotation")] == [2 * 16 * WIDTH]


def test_stale_positions_of_one_sequence_are_named_where_the_reference_has_them_for_all() -> None:
    candidate = Rotated(of_each=True, stale=1).bfloat16()
    (finding,) = check(Rotated(of_each=False), candidate, {"x": hidden().bfloat16()}).findings
    assert (finding.into, finding.check, finding.arm) == ("rotation", Check.EXACT, Arm.EXACT)
    assert finding.where["sequences"] == [1]


def judged(outcome: Outcome, *, module: str = "", into: str | None = None) -> list[Any]:
    return [j.evidence for j in outcome.judgements if (j.module, j.into) == (module, into)]


class Own(nn.Module):
    """Returns a parameter of its own, which its parent hands on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(hidden(seed=1)[0, 0])

    def forward(self) -> Tensor:
        return self.table


class Scaled(nn.Module):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * scale


class Parametric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.own, self.child = Own(), Scaled()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x, self.scale) + self.own()


def test_a_parameter_that_is_handed_on_may_be_stored_in_16_bits() -> None:
    reference = Parametric()
    outcome = check(reference, narrow(reference), {"x": hidden().bfloat16()})
    assert outcome.verdict is Verdict.ALIGNED
    altered = narrow(reference)
    altered.get_parameter("scale").data += 0.1
    assert places(check(reference, altered, {"x": hidden().bfloat16()})) == [("", "child")]


class LateScale(nn.Module):
    """Attention that scales its scores after masking them."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ x.transpose(-1, -2)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf) / 5.7 * self.factor
        return torch.softmax(scores, -1) @ x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_infinities_that_are_computed_with_hide_no_noise_and_no_fault(dtype: torch.dtype) -> None:
    inputs = {"x": hidden().to(dtype)}
    assert check(LateScale(), LateScale().to(dtype), inputs).verdict is Verdict.ALIGNED
    assert places(check(LateScale(), LateScale(1.1).to(dtype), inputs)) == [("", None)]


class Loss(nn.Module):
    """Ends in a single number."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.scale = Scale()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x).square().mean() * self.factor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_output_without_dims_is_judged(dtype: torch.dtype) -> None:
    inputs = {"x": hidden().to(dtype)}
    assert check(Loss(), Loss().to(dtype), inputs).verdict is Verdict.ALIGNED
    assert places(check(Loss(), Loss(1.1).to(dtype), inputs)) == [("", None)]


class Quantised(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.scale = Scale(factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x).to(torch.float8_e4m3fn)


def test_an_output_in_float8_is_judged() -> None:
    inputs = {"x": hidden().bfloat16()}
    assert check(Quantised(), narrow(Quantised()), inputs).verdict is Verdict.ALIGNED
    assert places(check(Quantised(), narrow(Quantised(1.2)), inputs)) == [("scale", None)]
