"""Pairing calls of both sides inside their parents."""

from tests.align.build import Recorder
from validator.align.calls import MatchedCalls, match_calls
from validator.capturing.records import RankCapture

Tree = list[tuple[str, "Tree"]]


def record(tree: Tree, rank: int = 0) -> RankCapture:
    recorder = Recorder(rank)

    def run(calls: Tree) -> None:
        for module, children in calls:
            with recorder.call(module, {}):
                run(children)

    run(tree)
    return recorder.capture()


def match(cand: list[Tree], ref: Tree, modules: str) -> MatchedCalls:
    captures = [record(tree, rank) for rank, tree in enumerate(cand)]
    return match_calls(cand=captures, ref=record(ref), modules={m: m for m in ["", *modules.split()]})


def keys(matched: MatchedCalls) -> list[tuple[str, int]]:
    return [(call.ref.module, call.ref.n) for call in matched.calls]


def test_calls_pair_in_the_references_order() -> None:
    tree: Tree = [("", [("a", [("b", [])]), ("a", [("b", []), ("b", [])])])]
    matched = match([tree, tree], tree, "a b")
    assert keys(matched) == [("", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2)]
    assert matched.problems == ()
    parents = [(call.parent.module, call.parent.n) if call.parent else None for call in matched.calls]
    assert parents == [None, ("", 0), ("a", 0), ("", 0), ("a", 1), ("a", 1)]
    assert all(
        {rank: ours.n for rank, ours in c.cand.items()} == {0: c.ref.n, 1: c.ref.n} for c in matched.calls
    )


def test_modules_of_one_side_are_looked_through() -> None:
    cand: Tree = [("", [("wrapper", [("a", [])])])]
    ref: Tree = [("", [("a", [])]), ("", [])]
    matched = match([[*cand, ("", [])]], ref, "a")
    assert keys(matched) == [("", 0), ("a", 0), ("", 1)]


def test_counts_that_differ_leave_the_module_and_all_below_it_out() -> None:
    cand: Tree = [("", [("moe", [("act", [("x", [])])]), ("norm", [])])]
    ref: Tree = [("", [("moe", [("act", [("x", [])]), ("act", [("x", [])])]), ("norm", [])])]
    matched = match([cand], ref, "moe act norm x")
    assert keys(matched) == [("", 0), ("moe", 0), ("norm", 0)]
    ((module, why),) = matched.problems
    assert module == "act"
    assert why.startswith("number of calls in call 0 of moe: candidate 1 on rank 0, reference 2")


def test_a_later_mismatch_leaves_earlier_calls_out_as_well() -> None:
    cand: Tree = [("", [("act", [])]), ("", [("act", []), ("act", [])])]
    ref: Tree = [("", [("act", [])]), ("", [("act", [])])]
    assert keys(match([cand], ref, "act")) == [("", 0), ("", 1)]


def test_a_module_that_the_candidate_skips_once_is_a_mismatch() -> None:
    cand: Tree = [("", [("a", [])]), ("", [])]
    ref: Tree = [("", [("a", [])]), ("", [("a", [])])]
    ((module, why),) = match([cand], ref, "a").problems
    assert module == "a"
    assert "candidate 0 on rank 0, reference 1" in why


def test_a_rank_may_leave_a_module_out() -> None:
    ref: Tree = [("", [("first", []), ("second", [])])]
    matched = match([[("", [("first", [])])], [("", [("second", [])])]], ref, "first second")
    assert {call.ref.module: tuple(call.cand) for call in matched.calls} == {
        "": (0, 1),
        "first": (0,),
        "second": (1,),
    }
    assert matched.problems == ()


def test_one_rank_with_another_count_is_named() -> None:
    ref: Tree = [("", [("a", [])])]
    ((_, why),) = match([ref, [("", [("a", []), ("a", [])])]], ref, "a").problems
    assert "candidate 2 on rank 1, reference 1" in why
