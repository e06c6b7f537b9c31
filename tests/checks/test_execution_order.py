"""The order of execution: what is judged before what, on one rank and on several."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.align.build import tensor_ref
from tests.checks.build import captured, check, feed
from tests.checks.test_edges import Mlp, hidden, judged, sharded
from tests.checks.test_engine import judged_on_ranks, on_ranks
from tests.checks.test_following import InOwnCode, Mixture, Router, narrow
from validator.align.builder import build_trace
from validator.align.traces import TraceCall
from validator.capturing.records import RankCapture, TensorRef
from validator.checks.engine import policy_of, run_checks
from validator.checks.execution_order import ExecutionOrder
from validator.checks.findings import Check, Judgement, Outcome
from validator.checks.following import Following
from validator.report.facts import first_divergence


def call(module: str, n: int = 0) -> TraceCall:
    return TraceCall(
        module=module, candidate_module=module, n=n, parent=None, order=0, inputs={}, outputs={}, values={}
    )


def rows(outcome: Outcome) -> list[tuple[str, str, str, int | None]]:
    """Return what was judged but parameters, in order: check, module, child and rank."""
    return [(j.check.value, j.module, j.into or "", j.rank) for j in edges(outcome)]


def edges(outcome: Outcome) -> list[Judgement]:
    return [j for j in outcome.judgements if j.check is not Check.PARAMETER]


def places(outcome: Outcome, check: Check, module: str) -> list[int]:
    return [n for n, j in enumerate(outcome.judgements) if (j.check, j.module) == (check, module)]


def test_an_edge_that_code_gets_to_again_keeps_its_place() -> None:
    order = ExecutionOrder()
    first = order.given(call("up"), "x"), order.returned(call("up"), "x"), order.chosen(call("up"), "x")
    assert list(first) == sorted(set(first))
    later = order.given(call("up", n=1), "x")
    assert later > first[-1]
    assert order.given(call("up"), "x") == first[0]
    assert order.returned(call("up"), "x") == first[1]


def test_terms_come_before_their_sum_and_copies_after_it_and_nothing_between() -> None:
    order = ExecutionOrder()
    given, one, two = (
        order.given(call("down"), "x"),
        order.returned(call("down"), "0"),
        order.returned(call("down"), "1"),
    )
    terms, copies = order.terms(one), order.copies(call("down"), "0")
    assert given < terms < one < copies < order.terms(two) < two


def test_a_parent_s_copies_come_behind_its_children_and_a_sum_s_behind_its_terms() -> None:
    x, reference = hidden(), Mlp()
    outcome = judged(reference, sharded(reference, x), x)
    assert rows(outcome) == [
        ("input", "", "", None),
        ("wiring", "", "up", None),
        ("function", "up", "", None),
        ("wiring", "", "down", None),
        ("partial", "down", "", 0),
        ("partial", "down", "", 1),
        ("function", "down", "", None),
        ("replica", "down", "", None),
        ("wiring", "", "", None),
        ("replica", "", "", None),
    ]
    orders = [j.order for j in edges(outcome)]
    assert orders == sorted(orders)
    terms, others = orders[4:6], orders[:4] + orders[6:]
    assert len(set(terms)) == 1
    assert len(set(others) - set(terms)) == len(others)


def with_ties_broken_otherwise(captures: Sequence[RankCapture], rank: int) -> list[RankCapture]:
    """Return the captures with the other neighbour wherever the model's last sum on a rank is a tie."""
    root = captures[rank].calls[0]
    total = root.inputs["hidden_states"].read().double() + made(captures[rank], "down").double()
    nearest = made(captures[rank], "")
    other = 2 * total - nearest.double()
    spacing = (other - nearest).abs()
    is_tie = (other.bfloat16() == other) & (spacing > 0) & (spacing < 2.0**-6 * nearest.abs())
    assert int(is_tie.sum()) > 4
    left = torch.where(is_tie, other.bfloat16(), nearest)
    spoilt = replace(root, outputs={"": tensor_ref(left)})
    return [
        replace(capture, calls=(spoilt, *capture.calls[1:])) if n == rank else capture
        for n, capture in enumerate(captures)
    ]


def made(capture: RankCapture, module: str) -> Tensor:
    (call,) = [call for call in capture.calls if call.module == module]
    ref = call.outputs[""]
    assert isinstance(ref, TensorRef)
    return ref.read()


def test_copies_of_a_parent_that_part_are_found_behind_a_fault_inside_of_it() -> None:
    """Rank 2 breaks ties of the last sum the other way, which rounding explains, but not that copies part."""
    for factor, first in ((1.0, ""), (1.1, "up")):
        captures = with_ties_broken_otherwise(on_ranks(4, up_factor=factor), 2)
        _, outcome = judged_on_ranks(captures)
        found = first_divergence(outcome)
        assert found is not None
        assert found.module == first
        (parted,) = [f for f in outcome.findings if f.check is Check.REPLICA]
        assert (parted.module, parted.rank) == ("", 2)
        assert parted is outcome.findings[-1]


def test_copies_of_what_was_judged_by_nothing_stand_at_the_end_of_its_call() -> None:
    x, reference = hidden(), Mlp()
    trace = build_trace(cand=sharded(reference, x), ref=captured(reference, {"x": x.float()}))
    outcome = run_checks(
        reference=reference,
        trace=trace,
        run=feed({"x": x}),
        policy=policy_of(None),
        scope={"", "up"},
    )
    assert rows(outcome)[-4:] == [
        ("wiring", "", "down", None),
        ("replica", "down", "", None),
        ("wiring", "", "", None),
        ("replica", "", "", None),
    ]


def test_a_choice_comes_after_what_it_is_made_from_and_before_what_follows() -> None:
    outcome = check(InOwnCode(), narrow(InOwnCode()), {"x": hidden_rows()})
    (choice,) = places(outcome, Check.EXACT, "")[:1]
    (gate,) = places(outcome, Check.FUNCTION, "gate")
    into = [n for n, j in enumerate(outcome.judgements) if j.into == "experts"]
    assert outcome.judgements[choice].path == "topk"
    assert gate < choice < min(into)
    router = check(Mixture(Router()), narrow(Mixture(Router())), {"x": hidden_rows()})
    own = [j.path for j in edges(router) if j.module == "router"]
    assert own[-1] == "topk", "where it chooses at its end, what it returns tells more"


def test_code_that_runs_again_is_still_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong guess at a choice lets the parent's code run again, behind which its children have run."""
    again: list[bool] = []
    revise = Following.revise

    def revised(following: Following, *args: Any) -> bool:
        is_first_run_of_parent = following._call.module == "" and not again
        again.extend([True] if is_first_run_of_parent else [])
        return revise(following, *args) or is_first_run_of_parent

    monkeypatch.setattr(Following, "revise", revised)
    outcome = check(InOwnCode(), narrow(InOwnCode()), {"x": hidden_rows()})
    assert any(again)
    (into,) = [n for n, j in enumerate(outcome.judgements) if j.into == "gate"]
    assert into < min(places(outcome, Check.FUNCTION, "gate"))


def hidden_rows(seed: int = 0) -> Tensor:
    return torch.randn(48, 32, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("world", [2, 4])
def test_every_rank_s_term_has_one_place(world: int) -> None:
    x, reference = hidden(), Mlp()
    outcome = judged(reference, sharded(reference, x, world=world), x)
    terms = [j for j in outcome.judgements if j.check is Check.PARTIAL]
    assert [j.rank for j in terms] == list(range(world))
    assert len({j.order for j in terms}) == 1
