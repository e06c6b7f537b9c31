"""The arguments of the one prefill that computes all steps of a generation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.align.build import tensor_ref
from tests.align.stepped import IDS, stepped
from validator.align.prefills import prefill_arguments
from validator.align.steps import Generation, NotOnePrefillError, find_generations
from validator.capturing.records import RankCapture

POSITIONS = torch.arange(7).expand(2, -1)


class Model(nn.Module):
    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        use_cache: Any = None,
        logits_to_keep: Any = 0,
        pixels: Any = None,
    ) -> None: ...


def generation(capture: RankCapture) -> Generation:
    (found,) = find_generations([capture])
    return found


def given(capture: RankCapture, n: int, **inputs: Any) -> RankCapture:
    calls = [
        replace(call, inputs={**call.inputs, **inputs}) if (call.module, call.n) == ("", n) else call
        for call in capture.calls
    ]
    return replace(capture, calls=tuple(calls))


def test_tokens_positions_and_the_last_mask_are_those_of_all_steps() -> None:
    found = generation(stepped([4, 2, 1], masks=True, positions=True))
    made = prefill_arguments(found, ref=None, reference=Model())
    assert torch.equal(made["input_ids"], IDS)
    assert torch.equal(made["position_ids"], POSITIONS)
    assert made["attention_mask"].tolist() == [[1] * 7] * 2
    assert made["use_cache"] is False
    assert "logits_to_keep" not in made


def test_positions_are_the_reference_s_where_it_made_the_same_steps() -> None:
    spoiled = given(
        stepped([4, 2, 1], masks=True, positions=True), 1, position_ids=tensor_ref(torch.zeros(2, 2))
    )
    ref = generation(stepped([4, 2, 1], masks=True, positions=True))
    made = prefill_arguments(generation(spoiled), ref=ref, reference=Model())
    assert torch.equal(made["position_ids"], POSITIONS)


@pytest.mark.parametrize("is_run", [True, False], ids=["other steps", "not run in steps"])
def test_positions_go_on_from_the_prompt_where_the_reference_made_no_such_steps(is_run: bool) -> None:
    spoiled = given(
        stepped([4, 2, 1], masks=True, positions=True), 1, position_ids=tensor_ref(torch.zeros(2, 2))
    )
    ref = generation(stepped([4, 3], masks=True, positions=True)) if is_run else None
    made = prefill_arguments(generation(spoiled), ref=ref, reference=Model())
    assert torch.equal(made["position_ids"], POSITIONS)


def test_a_prompt_s_padding_stays_padding() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    capture = stepped([4, 2, 1], caches=[0, 4, 6])
    made = prefill_arguments(
        generation(given(capture, 0, attention_mask=tensor_ref(mask))), ref=None, reference=Model()
    )
    assert made["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1], [1] * 7]


def test_padding_is_read_off_masks_that_a_static_cache_had_made() -> None:
    capture = stepped([4, 2, 1], caches=[0, 4, 6])
    for n, (start, stop) in enumerate(((0, 4), (4, 6), (6, 7))):
        shown = (torch.arange(9) <= torch.arange(start, stop)[:, None]).repeat(2, 1, 1, 1)
        shown[0, ..., :2] = False
        capture = given(capture, n, attention_mask=tensor_ref(shown))
    made = prefill_arguments(generation(capture), ref=None, reference=Model())
    assert made["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1], [1] * 7]


@pytest.mark.parametrize("rolls", [False, True], ids=["of all places", "that rolls"])
def test_padding_is_told_from_what_is_outside_of_a_window(rolls: bool) -> None:
    """With a window of two no query sees the whole prompt; what real queries see is real."""
    capture = stepped([4, 2, 1], caches=[0, 4, 6])
    places = torch.arange(9)
    for n, (start, stop) in enumerate(((0, 4), (4, 6), (6, 7))):
        queries = torch.arange(start, stop)[:, None]
        shown = ((places <= queries) & (places > queries - 2)).repeat(2, 1, 1, 1)
        shown[0, ..., :2] = False
        # One that is full holds the window before the step, less one, and the step.
        kept = shown[..., max(start - 1, 0) : stop] if rolls else shown
        capture = given(capture, n, attention_mask=tensor_ref(kept))
    made = prefill_arguments(generation(capture), ref=None, reference=Model())
    assert made["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1], [1] * 7]


def test_logits_are_kept_of_the_positions_of_which_steps_kept_them() -> None:
    made = prefill_arguments(generation(stepped([4, 2, 1], masks=True, kept=1)), ref=None, reference=Model())
    assert made["logits_to_keep"].tolist() == [3, 5, 6]


def test_each_rank_s_own_sequences_are_put_together() -> None:
    first, second = stepped([4, 3], masks=True), stepped([4, 3], masks=True, rank=1)
    for n, part in enumerate((IDS[:, :4], IDS[:, 4:])):
        second = given(second, n, input_ids=tensor_ref(part + 100))
    (found,) = find_generations([first, second])
    made = prefill_arguments(found, ref=None, reference=Model())
    assert torch.equal(made["input_ids"], torch.cat([IDS, IDS + 100]))
    assert made["attention_mask"].shape == (4, 7)
    with pytest.raises(NotOnePrefillError, match="make up 4 sequences, and the reference's run has 2"):
        prefill_arguments(found, ref=generation(stepped([4, 3], masks=True)), reference=Model())


def test_what_only_the_prompt_is_given_is_given_once_and_what_the_reference_does_not_take_is_left_out() -> (
    None
):
    capture = given(
        stepped([4, 3], masks=True), 0, pixels=tensor_ref(torch.ones(5, 3)), attn_metadata="paged"
    )
    made = prefill_arguments(generation(capture), ref=None, reference=Model())
    assert made["pixels"].shape == (5, 3)
    assert "attn_metadata" not in made


def test_types_of_the_prompt_s_tokens_go_on_as_those_of_text() -> None:
    types = torch.tensor([[0, 1, 1, 0]] * 2)
    capture = given(stepped([4, 2, 1], masks=True), 0, pixels=tensor_ref(types))
    made = prefill_arguments(generation(capture), ref=None, reference=Model())
    assert made["pixels"].tolist() == [[0, 1, 1, 0, 0, 0, 0]] * 2


def test_a_nested_argument_can_not_be_rebuilt() -> None:
    capture = given(stepped([4, 3], masks=True), 0, **{"images/0": tensor_ref(torch.ones(2))})
    with pytest.raises(NotOnePrefillError, match="'images/0' is nested"):
        prefill_arguments(generation(capture), ref=None, reference=Model())
