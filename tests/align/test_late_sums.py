"""Terms of sums over ranks that a caller completes are known for what they are, and nothing else is."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tests.align.build import Recorder, tensor_ref
from validator.align.late_sums import mark_terms, move_late_sums
from validator.capturing.records import Call, RankCapture

GENERATOR = torch.Generator().manual_seed(0)
TERMS = {rank: torch.randn(3, 4, generator=GENERATOR) for rank in range(2)}
TOTAL = TERMS[0] + TERMS[1]
MODULES = {"block": "block", "block.proj": "block.proj"}


def run(returned: Mapping[int, Tensor], entered: Mapping[int, Tensor] | None = None) -> list[RankCapture]:
    """Run a block whose projection returns these, and which sums those."""
    entered = returned if entered is None else entered
    total = torch.stack(list(entered.values())).sum(0)
    captures = []
    for rank in returned:
        recorder = Recorder(rank)
        with recorder.call("block", {"x": torch.ones(3, 4)}) as out:
            recorder.leaf("block.proj", torch.ones(3, 4), returned[rank])
            recorder.reduce(entered[rank], total, tuple(returned))
            out[""] = total
        # The recorder leaves the end of a call open.
        capture = recorder.capture()
        calls = tuple(
            replace(call, end=call.start + (10 if call.module == "block" else 0)) for call in capture.calls
        )
        captures.append(replace(capture, calls=calls))
    return captures


def proj(capture: RankCapture) -> Call:
    return next(call for call in capture.calls if call.module == "block.proj")


def reference(output: Tensor) -> RankCapture:
    recorder = Recorder()
    with recorder.call("block", {"x": torch.ones(3, 4)}) as out:
        recorder.leaf("block.proj", torch.ones(3, 4), output)
        out[""] = output
    return recorder.capture()


def kinds(capture: RankCapture) -> list[str]:
    return [placement.kind for placement in proj(capture).outputs[""].meta.placements or ()]


def test_a_term_that_enters_its_callers_sum_is_completed_by_it() -> None:
    for capture in move_late_sums(run(TERMS)):
        assert torch.equal(proj(capture).outputs[""].read(), TOTAL)
        assert [c.call for c in capture.collectives] == [proj(capture).id]


def test_what_is_alike_on_all_ranks_is_complete_although_it_is_summed_again() -> None:
    captures = run(dict.fromkeys(range(2), TOTAL))
    assert move_late_sums(captures) == tuple(captures)


def test_what_a_rank_gave_whose_capture_is_missing_makes_no_term_of_copies() -> None:
    captures = run(dict.fromkeys(range(3), TOTAL))[:2]
    assert move_late_sums(captures) == tuple(captures)


def test_what_no_caller_sums_stays() -> None:
    captures = [replace(capture, collectives=()) for capture in run(TERMS)]
    assert move_late_sums(captures) == tuple(captures)


def test_where_one_rank_changes_its_term_the_outputs_are_terms_and_the_sum_stays_with_the_caller() -> None:
    changed = {0: TERMS[0], 1: 1.5 * TERMS[1]}
    for capture in move_late_sums(run(TERMS, changed)):
        assert kinds(capture) == ["partial"]
        assert torch.equal(proj(capture).outputs[""].read(), TERMS[capture.rank])
        assert [c.call for c in capture.collectives] != [proj(capture).id]


def test_outputs_that_add_up_to_the_references_before_a_sum_are_terms() -> None:
    other = {rank: TERMS[rank] + 1.0 for rank in TERMS}
    captures = mark_terms(move_late_sums(run(TERMS, other)), reference(TOTAL), MODULES)
    assert [kinds(capture) for capture in captures] == [["partial"], ["partial"]]


def test_terms_of_a_stage_under_other_names_are_terms() -> None:
    other = {rank: TERMS[rank] + 1.0 for rank in TERMS}
    renamed = [
        replace(capture, calls=tuple(replace(c, module=f"module.{c.module}") for c in capture.calls))
        for capture in run(TERMS, other)
    ]
    modules = {f"module.{name}": name for name in MODULES}
    captures = mark_terms([*renamed, Recorder(2).capture()], reference(TOTAL), modules)
    for capture in captures[:2]:
        (call,) = (call for call in capture.calls if call.module == "module.block.proj")
        assert [placement.kind for placement in call.outputs[""].meta.placements or ()] == ["partial"]


def test_copies_that_differ_by_a_fault_are_no_terms() -> None:
    copies = {0: TOTAL, 1: 1.5 * TOTAL}
    other = {rank: copies[rank] + 1.0 for rank in copies}
    captures = mark_terms(move_late_sums(run(copies, other)), reference(TOTAL), MODULES)
    assert [kinds(capture) for capture in captures] == [[], []]


def test_a_scattered_sum_leaves_each_rank_its_part() -> None:
    captures = []
    for capture in run(TERMS):
        (sum_,) = capture.collectives
        part = tensor_ref(TOTAL.chunk(2)[capture.rank])
        captures.append(replace(capture, collectives=(replace(sum_, op="reduce_scatter", left=(part,)),)))
    moved = move_late_sums(captures)
    assert torch.equal(torch.cat([proj(capture).outputs[""].read() for capture in moved]), TOTAL)


def test_groups_of_ranks_that_sum_apart_have_terms_of_their_parts_of_the_batch() -> None:
    others = {rank: torch.randn(3, 4, generator=GENERATOR) for rank in range(2)}
    groups = [run(terms, {r: terms[r] + 1.0 for r in terms}) for terms in (TERMS, others)]
    second = [
        replace(c, rank=c.rank + 2, collectives=tuple(replace(x, ranks=(2, 3)) for x in c.collectives))
        for c in groups[1]
    ]
    whole = torch.cat([TOTAL, others[0] + others[1]])
    marked = mark_terms([*groups[0], *second], reference(whole), MODULES)
    assert [kinds(capture) for capture in marked] == [["partial"]] * 4
    unlike = mark_terms([*groups[0], *second], reference(whole.flip(0)), MODULES)
    assert [kinds(capture) for capture in unlike] == [[]] * 4
