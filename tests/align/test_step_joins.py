"""What a module did in each step is one call of it, on all tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.align.build import tensor_ref
from tests.align.stepped import IDS, Values, prefill, stepped
from validator.align.step_joins import join_steps
from validator.align.steps import find_generations
from validator.capturing.records import Call, RankCapture, TensorRef


def joined(capture: RankCapture, ref: RankCapture) -> RankCapture:
    (found,) = join_steps([capture], generations=find_generations([capture]), ref=ref)
    return found


def calls(capture: RankCapture) -> dict[str, Call]:
    assert len({call.module for call in capture.calls}) == len(capture.calls)
    return {call.module: call for call in capture.calls}


def read(value: Any) -> torch.Tensor:
    assert isinstance(value, TensorRef)
    return value.read()


@pytest.mark.parametrize("sizes", [[4, 2, 1], [1] * 7], ids=["a prefill and steps", "steps of one token"])
def test_each_module_has_the_tensors_of_one_prefill(sizes: list[int]) -> None:
    found = calls(joined(stepped(sizes, masks=True, positions=True), prefill()))
    assert torch.equal(read(found[""].inputs["input_ids"]), IDS)
    assert torch.equal(read(found[""].inputs["position_ids"]), torch.arange(7).expand(2, -1))
    assert torch.equal(read(found["norm"].inputs["input"]), Values.hidden)
    assert torch.equal(read(found["attention"].outputs["0"]), Values.keys)
    assert torch.equal(read(found["router"].inputs["input"]), Values.rows)
    assert torch.equal(read(found["head"].outputs[""]), Values.logits)
    assert {call.parent for call in found.values()} == {None, found[""].id}


def test_probabilities_of_the_keys_so_far_are_padded_to_all() -> None:
    found = calls(joined(stepped([4, 2, 1], masks=True), prefill()))
    assert torch.equal(read(found["attention"].outputs["1"]), Values.scores)


def test_masks_are_left_out_but_for_the_model_s_own() -> None:
    ref = stepped([7], masks=True)
    found = calls(joined(stepped([4, 2, 1], masks=True), ref))
    assert found["attention"].inputs == {}
    assert read(found[""].inputs["attention_mask"]).shape == (2, 7)


def test_logits_of_the_positions_that_were_kept_follow_one_another() -> None:
    found = calls(joined(stepped([4, 2, 1], masks=True, kept=1), prefill(kept=1)))
    assert torch.equal(read(found[""].outputs["logits"]), Values.logits[:, [3, 5, 6]])
    assert torch.equal(read(found["head"].inputs["input"]), Values.hidden[:, [3, 5, 6]])
    assert torch.equal(read(found["norm"].inputs["input"]), Values.hidden)


def test_a_rank_s_part_of_the_channels_is_joined_along_its_tokens() -> None:
    found = calls(joined(stepped([4, 2, 1], masks=True, rank=1, halves=2), prefill()))
    assert torch.equal(read(found["norm"].inputs["input"]), Values.hidden[..., 2:])


def test_sums_over_ranks_are_those_of_all_tokens() -> None:
    found = joined(stepped([4, 2, 1], masks=True), prefill())
    (collective,) = found.collectives
    assert collective.call == calls(found)["attention"].id
    assert torch.equal(read(collective.entered[0]), Values.hidden / 2)


def test_what_is_alike_in_all_steps_and_has_no_tokens_stays() -> None:
    found = calls(joined(stepped([4, 2, 1], masks=True), prefill()))
    assert torch.equal(read(found["router"].outputs["1"]), torch.ones(3))


def with_value(capture: RankCapture, values: list[torch.Tensor], module: str = "norm") -> RankCapture:
    """Return a capture in which a module returned other values, one a call."""
    left = iter(values)
    calls = [
        replace(call, outputs={"": tensor_ref(next(left))}) if call.module == module else call
        for call in capture.calls
    ]
    return replace(capture, calls=tuple(calls))


def seeded(*shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for _ in range(3)]


def test_logits_of_the_last_position_without_a_dim_of_positions_are_stacked() -> None:
    made, all_of_them = seeded(2, 11), torch.zeros(2, 3, 11)
    cand = with_value(stepped([4, 2, 1], masks=True, kept=1), made)
    ref = with_value(prefill(kept=1), [all_of_them])
    assert torch.equal(read(calls(joined(cand, ref))["norm"].outputs[""]), torch.stack(made, 1))


def test_what_a_prefill_has_once_for_each_sequence_is_what_the_last_step_has() -> None:
    made = seeded(2, 11)
    cand = with_value(stepped([4, 2, 1], masks=True), made)
    found = calls(joined(cand, with_value(prefill(), [torch.zeros(2, 11)])))
    assert torch.equal(read(found["norm"].outputs[""]), made[-1])


def test_rows_that_are_as_many_in_each_step_follow_one_another_where_the_reference_has_them_all() -> None:
    made = seeded(5, 3)
    cand = with_value(stepped([4, 2, 1], masks=True), made)
    found = calls(joined(cand, with_value(prefill(), [torch.zeros(15, 3)])))
    assert torch.equal(read(found["norm"].outputs[""]), torch.cat(made))


@pytest.mark.parametrize("shape", [(), (3,), (5, 3)], ids=["a loss", "counts", "rows of something"])
def test_what_no_rule_says_anything_of_is_compared_with_nothing(shape: tuple[int, ...]) -> None:
    cand = with_value(stepped([4, 2, 1], masks=True), seeded(*shape))
    found = calls(joined(cand, with_value(prefill(), [torch.zeros(shape)])))
    assert found["norm"].outputs == {}


def test_several_generations_are_joined_each_by_itself() -> None:
    found = joined(stepped([4, 3, 5, 2], masks=True), stepped([7, 7]))
    norms = [call for call in found.calls if call.module == "norm"]
    assert [torch.equal(read(call.inputs["input"]), Values.hidden) for call in norms] == [True, True]
