"""Prompts come from a target's own inputs, without their padding."""

from typing import Any

import pytest
import torch

from validator.errors import MismatchError
from validator.long_context.prompts import long_prompt, short_prompts

IDS = torch.arange(40).view(2, 20)


def test_short_prompts_are_spread_over_the_inputs_and_of_one_length() -> None:
    prompts = short_prompts({"input_ids": IDS}, count=4, tokens=5)
    assert prompts[:, 0].tolist() == [0, 10, 25, 35]
    assert prompts.shape == (4, 5)
    assert torch.equal(prompts[:, 1:] - prompts[:, :-1], torch.ones(4, 4, dtype=torch.int64))


def test_a_long_prompt_is_all_inputs_and_then_drawn_the_same_each_time() -> None:
    prompt = long_prompt({"input_ids": IDS}, tokens=60, vocabulary=50)
    assert prompt[:40].tolist() == list(range(40))
    assert torch.equal(prompt, long_prompt({"input_ids": IDS.int()}, tokens=60, vocabulary=50))
    assert prompt[40:].unique().numel() > 10
    assert len(long_prompt({"input_ids": IDS}, tokens=9, vocabulary=50)) == 9


def test_padding_is_left_out() -> None:
    mask = torch.ones_like(IDS)
    mask[0, :14] = 0
    padded = {"input_ids": IDS, "attention_mask": mask}
    prompts = short_prompts(padded, count=2, tokens=32)
    assert prompts[:, 0].tolist() == [14, 32]
    assert prompts.shape == (2, 6)
    assert long_prompt(padded, tokens=8, vocabulary=50).tolist() == list(range(14, 22))


@pytest.mark.parametrize("inputs", [{}, {"pixel_values": torch.zeros(1)}, {"input_ids": torch.zeros(2, 3)}])
def test_inputs_without_tokens_are_refused(inputs: dict[str, Any]) -> None:
    for make in (
        lambda: short_prompts(inputs, count=1, tokens=4),
        lambda: long_prompt(inputs, tokens=4, vocabulary=8),
    ):
        with pytest.raises(MismatchError, match="no input_ids, tokens"):
            make()


def test_a_mask_that_hides_all_is_refused() -> None:
    with pytest.raises(MismatchError, match="hides all 40 tokens"):
        long_prompt({"input_ids": IDS, "attention_mask": torch.zeros_like(IDS)}, tokens=4, vocabulary=8)
