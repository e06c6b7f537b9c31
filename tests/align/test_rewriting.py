"""Calls that are split and merged: ids, parents, order and what ran inside."""

from dataclasses import replace

import torch

from tests.align.build import Recorder
from validator.align.rewriting import merged_calls, split_calls, with_calls
from validator.capturing.records import RankCapture


def recorded() -> RankCapture:
    """Run a layer of `a` (around `a.inner`, which sums over ranks), `b` and `c`, twice."""
    x = torch.ones(2)
    recorder = Recorder()
    with recorder.call("", {}):
        for _ in range(2):
            with recorder.call("a", {}), recorder.call("a.inner", {}):
                recorder.reduce(x, x, (0,))
            recorder.leaf("b", x, x)
            recorder.leaf("c", x, x)
    capture = recorder.capture()
    # A recorder leaves calls open; a capture has their ends.
    calls = tuple(replace(call, end=call.start + (0 if "." in call.module else 1)) for call in capture.calls)
    last = replace(calls[0], end=100)
    return replace(capture, calls=(last, *calls[1:]))


def shown(capture: RankCapture) -> list[tuple[str, int, str | None]]:
    """Return module, number and parent of each call, in the order in which they began."""
    names = {call.id: call.module for call in capture.calls}
    assert [call.id for call in capture.calls] == list(range(len(capture.calls)))
    starts = [call.start for call in capture.calls]
    assert starts == sorted(set(starts))
    return [(c.module, c.n, None if c.parent is None else names[c.parent]) for c in capture.calls]


def test_parts_follow_each_other_in_the_place_of_the_call() -> None:
    capture = recorded()
    calls, collectives = split_calls(
        capture,
        lambda call: [replace(call, module=f"a{i}") for i in range(3)] if call.module == "a" else None,
    )
    split = with_calls(capture, calls, collectives=collectives)
    once = [("a0", "a.inner", "a1", "a2", "b", "c")]
    assert [name for name, _, _ in shown(split)] == ["", *once[0], *once[0]]
    assert [n for name, n, _ in shown(split) if name == "a2"] == [0, 1]
    assert {parent for name, _, parent in shown(split) if name == "a.inner"} == {"a0"}
    of_id = {call.id: call.module for call in split.calls}
    assert [of_id[c.call] for c in split.collectives if c.call is not None] == ["a.inner", "a.inner"]
    assert all(split.calls[c.call].start < c.start for c in split.collectives if c.call is not None)


def test_merged_calls_hold_what_ran_inside_each() -> None:
    capture = recorded()
    by_module = {name: [call for call in capture.calls if call.module == name] for name in ("a", "b")}
    groups = list(zip(by_module["b"], by_module["a"], strict=True))
    calls, collectives = merged_calls(capture, groups, lambda group: replace(group[0], module="ab"))
    merged = with_calls(capture, calls, collectives=collectives)
    assert [(name, parent) for name, _, parent in shown(merged)] == [
        ("", None),
        *[("ab", ""), ("a.inner", "ab"), ("c", "")] * 2,
    ]
    assert [call.n for call in merged.calls if call.module == "ab"] == [0, 1]
