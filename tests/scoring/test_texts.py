"""Prompts come from a target's inputs, and the text that ships is the one of its provenance."""

import hashlib
import json

import pytest
import torch
from torch import nn

from validator.content import content_path
from validator.errors import MismatchError
from validator.scoring.texts import TEXT, following, prompts_of, shipped_text, tokens_of, windows_of

IDS = torch.arange(40).view(2, 20)


def test_prompts_are_spread_over_the_inputs_and_of_one_length() -> None:
    prompts = prompts_of({"input_ids": IDS}, count=4, tokens=5)
    assert prompts[:, 0].tolist() == [0, 10, 25, 35]
    assert prompts.shape == (4, 5)
    assert torch.equal(prompts[:, 1:] - prompts[:, :-1], torch.ones(4, 4, dtype=torch.int64))


def test_padding_is_left_out_of_prompts() -> None:
    mask = torch.ones_like(IDS)
    mask[0, :14] = 0
    prompts = prompts_of({"input_ids": IDS, "attention_mask": mask}, count=2, tokens=32)
    assert prompts[:, 0].tolist() == [14, 32]
    assert prompts.shape == (2, 6)


@pytest.mark.parametrize("inputs", [{}, {"pixel_values": torch.zeros(1)}, {"input_ids": torch.zeros(2, 3)}])
def test_inputs_without_tokens_are_refused(inputs: dict[str, torch.Tensor]) -> None:
    with pytest.raises(MismatchError, match="no input_ids, tokens"):
        prompts_of(inputs, count=1, tokens=4)


def test_windows_do_not_overlap_and_a_short_text_is_one() -> None:
    assert windows_of(torch.arange(25), count=2, size=10).tolist() == IDS.flatten()[:20].view(2, 10).tolist()
    assert windows_of(torch.arange(7), count=4, size=10).shape == (1, 7)


def test_what_follows_a_token_is_the_next_of_its_row() -> None:
    assert following(torch.tensor([[5, 6, 7], [1, 2, 3]])).tolist() == [[6, 7, -100], [2, 3, -100]]


def test_a_model_without_a_tokenizer_reads_bytes() -> None:
    assert tokens_of("aé", nn.Linear(1, 1), vocabulary=256).tolist() == [97, 0xC3, 0xA9]
    assert int(tokens_of(shipped_text(), nn.Linear(1, 1), vocabulary=50).max()) < 50


def test_the_text_is_the_one_of_its_provenance() -> None:
    path = content_path("baselines", TEXT)
    told = json.loads((path.parent / "provenance.json").read_text(encoding="utf-8"))[path.name]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]
    assert len(shipped_text().split()) == told["words"]
    assert 300 <= told["words"] <= 600
