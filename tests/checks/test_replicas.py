"""Replicas: only the edge where they part is a finding."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tests.align.build import run_model, tensor_ref
from validator.align.builder import build_trace
from validator.align.edges import join
from validator.align.traces import Edge, Trace, TraceCall, View
from validator.capturing.records import Mesh, Placement
from validator.checks.execution_order import ExecutionOrder
from validator.checks.findings import Arm, Check, Evidence, Finding, Judgement, Verdict
from validator.checks.replicas import Errors, check_replicas


def replicated(values: Sequence[Tensor], path: str = "") -> Edge:
    """Return an edge of which each rank has its own copy."""
    refs = {rank: tensor_ref(value) for rank, value in enumerate(values)}
    return join(refs, path=path, shape=values[0].shape, dims_of=lambda *_: ("token", "channel")).edge


def same(count: int = 3) -> list[Tensor]:
    return [torch.ones(2, 4)] * count


def apart(*ranks: int, count: int = 3) -> list[Tensor]:
    wrong = torch.ones(2, 4)
    wrong[1, 2] = 5.0
    return [wrong if rank in ranks else torch.ones(2, 4) for rank in range(count)]


def call(
    module: str, order: int, given: list[Tensor], made: list[Tensor], parent: str | None = ""
) -> TraceCall:
    return TraceCall(
        module=module,
        candidate_module=f"engine.{module}",
        n=0,
        parent=None if parent is None else (parent, 0),
        order=order,
        inputs={"x": replicated(given, "x")},
        outputs={"": replicated(made)},
        values={},
    )


def trace(*calls: TraceCall, world_size: int = 3, parameters: dict[str, Edge] | None = None) -> Trace:
    return Trace(
        calls={(c.module, c.n): c for c in calls},
        parameters=parameters or {},
        candidate_parameters={},
        views=tuple(View(ranks=(rank,)) for rank in range(world_size)),
        world_size=world_size,
    )


def chain(*, at: str, parameters: dict[str, Edge] | None = None) -> Trace:
    """Three modules in a row inside a model; replicas part in `at`, and stay apart behind it."""
    order = ["first", "second", "third"]
    calls = [call("", 0, same(), apart(2) if at in order else same(), parent=None)]
    is_apart = False
    for i, module in enumerate(order):
        given = apart(2) if is_apart else same()
        is_apart = is_apart or module == at
        calls.append(call(module, i + 1, given, apart(2) if is_apart else same()))
    return trace(*calls, parameters=parameters)


def copies_checked(
    trace: Trace, found: Sequence[Finding], errors: Sequence[Errors]
) -> tuple[list[Judgement], list[Finding]]:
    return check_replicas(trace, found, errors, ExecutionOrder().copies)


def test_replicas_that_agree_are_aligned_edge_by_edge() -> None:
    judgements, findings = copies_checked(chain(at="nowhere"), [], [])
    assert findings == []
    assert [(j.module, j.verdict) for j in judgements] == [
        (module, Verdict.ALIGNED) for module in ("", "first", "second", "third")
    ]
    assert {j.check for j in judgements} == {Check.REPLICA}


def test_where_replicas_part_is_one_finding_and_what_follows_is_none() -> None:
    for module in ("first", "second", "third"):
        judgements, findings = copies_checked(chain(at=module), [], [])
        assert [(f.module, f.rank, f.check, f.arm) for f in findings] == [
            (module, 2, Check.REPLICA, Arm.EXACT)
        ]
        assert [j.module for j in judgements if j.verdict is Verdict.DIVERGENT] == [module]


def test_a_finding_shows_the_place_and_the_values_of_both_replicas() -> None:
    _, (finding,) = copies_checked(chain(at="second"), [], [])
    evidence = finding.evidence
    assert (evidence.worst_index, evidence.reference, evidence.candidate) == ((1, 2), 1.0, 5.0)
    assert (evidence.outside, evidence.elements, evidence.dims) == (1, 8, ("token", "channel"))
    assert finding.candidate_module == "engine.second"
    assert finding.summary == (
        "second: the output should be the same on every rank, but rank 2 differs from rank 0 in 1 of 8 "
        "elements, although what went in was the same"
    )


def test_several_ranks_apart_are_all_named_and_none_is_singled_out() -> None:
    made = trace(call("norm", 0, same(4), apart(1, 2, count=4), parent=None), world_size=4)
    _, (finding,) = copies_checked(made, [], [])
    assert finding.rank is None
    assert "rank 1, 2 differs from rank 0" in finding.summary


def test_of_two_ranks_that_differ_none_is_blamed() -> None:
    made = trace(call("norm", 0, same(2), apart(1, count=2), parent=None), world_size=2)
    _, (finding,) = copies_checked(made, [], [])
    assert finding.rank is None
    assert "rank 1 differs from rank 0" in finding.summary


def test_the_lowest_rank_is_blamed_where_the_others_agree() -> None:
    _, (finding,) = copies_checked(trace(call("norm", 0, same(), apart(0), parent=None)), [], [])
    assert finding.rank == 0
    assert "rank 0 differs from rank 1 in 1 of 8" in finding.summary
    assert (finding.evidence.reference, finding.evidence.candidate) == (1.0, 5.0)


def test_replicas_are_compared_with_the_lowest_rank_that_holds_them() -> None:
    shards = [torch.zeros(2, 4), torch.zeros(2, 4), torch.ones(2, 4), torch.full((2, 4), 3.0)]
    mesh = Mesh(axes=("tp", "dp"), shape=(2, 2), ranks=(0, 1, 2, 3))
    placements = (Placement(kind="shard", dim=0), Placement(kind="replicate"))
    refs = {
        rank: tensor_ref(shard, mesh=mesh, placements=placements, global_shape=(4, 4))
        for rank, shard in enumerate(shards)
    }
    made = join(refs, path="", shape=(4, 4), dims_of=lambda *_: ("token", "channel")).edge
    norm = replace(call("norm", 0, same(4), same(4), parent=None), outputs={"": made})
    _, (finding,) = copies_checked(trace(norm, world_size=4), [], [])
    assert finding.rank is None
    assert "rank 3 differs from rank 2 in 8 of 16" in finding.summary


def test_a_parent_is_not_blamed_for_its_child() -> None:
    parent = call("mlp", 0, same(), apart(1), parent=None)
    child = call("mlp.up", 1, same(), apart(1), parent="mlp")
    _, findings = copies_checked(trace(parent, child), [], [])
    assert [f.module for f in findings] == ["mlp.up"]


def test_a_parent_whose_children_agree_is() -> None:
    parent = call("mlp", 0, same(), apart(1), parent=None)
    child = call("mlp.up", 1, same(), same(), parent="mlp")
    _, findings = copies_checked(trace(parent, child), [], [])
    assert [f.module for f in findings] == ["mlp"]


def test_replicas_of_a_parameter_that_differ_explain_what_their_module_makes() -> None:
    weight = {"second.weight": replicated(apart(2))}
    assert copies_checked(chain(at="second", parameters=weight), [], [])[1] == []
    assert len(copies_checked(chain(at="first", parameters=weight), [], [])[1]) == 1


def test_an_edge_that_another_check_found_is_not_found_twice() -> None:
    found = Finding(
        module="second",
        candidate_module="second",
        check=Check.FUNCTION,
        verdict=Verdict.DIVERGENT,
        arm=Arm.MAX,
        summary="",
        order=1,
        evidence=Evidence(),
    )
    judgements, findings = copies_checked(chain(at="second"), [found], [])
    assert findings == []
    assert [j.module for j in judgements if j.verdict is Verdict.DIVERGENT] == ["second"]
    elsewhere = replace(found, module="third", call=7)
    assert len(copies_checked(chain(at="second"), [elsewhere], [])[1]) == 1


def test_one_rank_has_no_replicas() -> None:
    alone = trace(call("norm", 0, same(1), same(1), parent=None), world_size=1)
    assert copies_checked(alone, [], []) == ([], [])


def test_a_captured_run_whose_norm_differs_on_one_rank_names_it() -> None:
    made = build_trace(cand=run_model(world=3, norm_factor={1: 1.01}), ref=run_model()[0])
    assert len(made.views) == 2
    _, findings = copies_checked(made, [], [])
    assert [(f.module, f.rank) for f in findings] == [("norm", 1)]
    healthy = build_trace(cand=run_model(world=2), ref=run_model()[0])
    assert copies_checked(healthy, [], [])[1] == []


def test_the_copy_that_is_clearly_further_from_the_control_names_its_rank() -> None:
    """Forty elements differ; rank 1's are an ulp off each time, rank 0's are the control's own."""
    right, wrong = torch.ones(10, 4), torch.full((10, 4), 1.5)
    made = replace(chain(at="nowhere"), views=(View(ranks=(0,)), View(ranks=(1,))), world_size=2)
    norm = call("norm", 0, [right, right], [right, wrong], parent=None)
    made = replace(made, calls={("norm", 0): norm}, parameters={})
    key = ("norm", 0, "")
    (finding,) = copies_checked(made, [], [{key: right - 1}, {key: (wrong - 1).abs()}])[1]
    assert finding.rank == 1
    assert "rank 1 is further from the reference" in finding.summary


def test_copies_that_differ_by_rounding_alone_name_no_rank() -> None:
    right, other = torch.ones(10, 4), torch.full((10, 4), 1.5)
    norm = call("norm", 0, [right, right], [right, other], parent=None)
    made = replace(
        chain(at="nowhere"),
        views=(View(ranks=(0,)), View(ranks=(1,))),
        world_size=2,
        calls={("norm", 0): norm},
        parameters={},
    )
    key = ("norm", 0, "")
    alternating = torch.tensor([0.0, 0.5]).repeat(20).reshape(10, 4)
    (finding,) = copies_checked(made, [], [{key: alternating}, {key: 0.5 - alternating}])[1]
    assert finding.rank is None


def test_what_no_two_ranks_hold_is_not_counted_as_copies_that_agree() -> None:
    made = build_trace(cand=run_model(world=2), ref=run_model()[0])
    judged = {j.module for j in copies_checked(made, [], [])[0]}
    assert made.calls["mlp.up", 0].outputs[""].shape[-1] == 12
    assert judged == {module for module, _ in made.calls} - {"mlp.up"}
