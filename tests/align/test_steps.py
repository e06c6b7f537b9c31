"""Calls of the model that continue one another are steps of one generation."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.align.build import tensor_ref
from tests.align.stepped import IDS, stepped
from validator.align.steps import NotOnePrefillError, find_generations
from validator.capturing.records import RankCapture


def sizes(capture: RankCapture) -> list[list[int]]:
    return [[step.tokens for step in found.steps] for found in find_generations([capture])]


def changed(capture: RankCapture, n: int, **inputs: Any) -> RankCapture:
    """Return a capture in which the n-th call of the model was given something else."""
    calls = [
        replace(call, inputs={**call.inputs, **inputs}) if (call.module, call.n) == ("", n) else call
        for call in capture.calls
    ]
    return replace(capture, calls=tuple(calls))


@pytest.mark.parametrize(
    "evidence",
    [{"masks": True}, {"positions": True}, {"caches": [0, 4, 6]}, {"caches": [None, None, None]}],
    ids=["masks", "positions", "a cache that tells its length", "a cache that does not"],
)
def test_calls_that_go_on_are_one_generation(evidence: dict[str, Any]) -> None:
    (generation,) = find_generations([stepped([4, 2, 1], **evidence)])
    assert [(step.start, step.stop) for step in generation.steps] == [(0, 4), (4, 6), (6, 7)]
    assert generation.batches == {0: 2}
    assert generation.kept == tuple(range(7))


@pytest.mark.parametrize("name", ["past_key_values", "cache", "kwargs/past_key_values"])
def test_a_cache_is_known_by_what_it_is_and_not_by_its_name(name: str) -> None:
    capture = stepped([4, 2, 1], caches=[0, 4, 6])
    calls = [
        replace(call, objects=tuple(dict(zip([name], side.values(), strict=False)) for side in call.objects))
        for call in capture.calls
    ]
    assert sizes(replace(capture, calls=tuple(calls))) == [[4, 2, 1]]


@pytest.mark.parametrize("path", ["logits", "", "0"])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_model_may_return_the_last_position_s_logits_alone(path: str, dims: int) -> None:
    capture = stepped([4, 2, 1], masks=True, kept=1)
    calls = []
    for call in capture.calls:
        if not call.module:
            logits = call.outputs["logits"].read()
            call = replace(call, outputs={path: tensor_ref(logits if dims == 3 else logits[:, 0])})
        calls.append(call)
    (generation,) = find_generations([replace(capture, calls=tuple(calls))])
    assert generation.kept == (3, 5, 6)


def test_calls_that_share_nothing_are_generations_of_their_own() -> None:
    assert sizes(stepped([4, 2, 1])) == [[4], [2], [1]]


def test_prompts_that_are_whole_are_generations_of_their_own() -> None:
    assert sizes(stepped([7, 7], masks=True, positions=True)) == [[7], [7]]


def test_a_run_may_hold_several_generations() -> None:
    assert sizes(stepped([4, 3, 5, 2], masks=True)) == [[4, 3], [5, 2]]


def test_a_cache_that_was_emptied_begins_a_generation() -> None:
    assert sizes(stepped([4, 3, 5, 2], caches=[0, 4, 0, 5])) == [[4, 3], [5, 2]]


def test_another_cache_begins_a_generation() -> None:
    capture = stepped([4, 3, 5, 2], caches=[None] * 4, numbers=[0, 0, 1, 1])
    assert sizes(capture) == [[4, 3], [5, 2]]


@pytest.mark.parametrize("lengths", [[0, 0, 3, 4, 5], [None] * 5], ids=["of known length", "of none"])
def test_calls_of_generations_that_alternate_go_on_with_their_own_caches(lengths: list[int | None]) -> None:
    capture = stepped([3, 4, 2, 1, 1], caches=lengths, numbers=[0, 1, 0, 1, 0])
    assert sizes(capture) == [[3, 2, 1], [4, 1]]
    first, second = find_generations([capture])
    assert [[step.calls[0].n for step in found.steps] for found in (first, second)] == [[0, 2, 4], [1, 3]]
    assert [(step.start, step.stop) for step in second.steps] == [(0, 4), (4, 5)]


def test_tokens_that_were_taken_back_while_another_cache_was_used_are_no_one_prefill() -> None:
    with pytest.raises(NotOnePrefillError, match=r"call 2 .* a cache of 2 tokens, and the calls before"):
        find_generations([stepped([3, 4, 2], caches=[0, 0, 2], numbers=[0, 1, 0])])


def test_positions_that_restart_do_not_hide_that_a_cache_goes_on() -> None:
    capture = stepped([4, 2, 1], positions=True, caches=[0, 4, 6])
    capture = changed(capture, 1, position_ids=tensor_ref(torch.tensor([[0, 1], [0, 1]])))
    assert sizes(capture) == [[4, 2, 1]]


def test_tokens_that_were_taken_back_are_no_one_prefill() -> None:
    with pytest.raises(NotOnePrefillError, match="a cache of 3 tokens, and the calls before it had 4"):
        find_generations([stepped([4, 2, 1], caches=[0, 3, 5])])


def test_a_prompt_that_goes_on_in_two_ways_is_no_one_prefill() -> None:
    capture = changed(
        stepped([4, 1, 1, 1], masks=True), 0, input_ids=tensor_ref(IDS[:1, :4].expand(2, -1).contiguous())
    )
    with pytest.raises(NotOnePrefillError, match="as in a beam search"):
        find_generations([capture])


@pytest.mark.parametrize("sizes_", [[3, 2, 2], [3, 2, 1, 1], [1] * 7], ids=["chunks", "and steps", "a token"])
def test_prompts_that_begin_alike_are_prompts_of_their_own(sizes_: list[int]) -> None:
    capture = stepped(sizes_, masks=True)
    capture = changed(capture, 0, input_ids=tensor_ref(IDS[:1, : sizes_[0]].expand(2, -1).contiguous()))
    assert sizes(capture) == [sizes_]


def test_windows_whose_positions_go_on_are_no_steps_where_nothing_is_kept() -> None:
    capture = stepped([4, 3], positions=True)
    for n in range(2):
        capture = changed(capture, n, use_cache=None)
    assert sizes(capture) == [[4], [3]]


def test_positions_of_no_dims_say_nothing() -> None:
    capture = stepped([4, 3])
    for n in range(2):
        capture = changed(capture, n, cache_position=tensor_ref(torch.tensor(4 * n)))
    assert sizes(capture) == [[4], [3]]


def test_a_prompt_that_is_there_twice_and_goes_on_alike_is_one() -> None:
    capture = stepped([4, 3], masks=True)
    for n, ids in ((0, IDS[:1, :4]), (1, IDS[:1, 4:])):
        capture = changed(capture, n, input_ids=tensor_ref(ids.expand(2, -1).contiguous()))
    assert sizes(capture) == [[4, 3]]


def test_the_positions_whose_logits_were_kept_are_told_by_their_number_or_by_what_was_asked_for() -> None:
    capture = stepped([4, 2, 1], masks=True, kept=1)
    assert find_generations([capture])[0].kept == (3, 5, 6)
    capture = changed(capture, 0, logits_to_keep=tensor_ref(torch.tensor([1])))
    assert find_generations([capture])[0].kept == (1, 5, 6)


def test_ranks_that_call_the_model_another_number_of_times_have_no_generations() -> None:
    assert find_generations([stepped([4, 3], masks=True), stepped([7], masks=True, rank=1)]) == ()
