"""A reference that generates no text is told apart, and not called wrong."""

from pathlib import Path

import pytest

from validator.scoring.alignment import NotGenerativeError, Plan, score_target

PORT = """
import torch
from torch import nn


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed, self.head = nn.Embedding(256, 16), nn.Linear(16, 256)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return MADE


def reference():
    return Sums()


def candidate():
    return Sums()


def inputs():
    return {"input_ids": torch.arange(24).reshape(2, 12)}
"""


def score(folder: Path, made: str) -> object:
    path = folder / "port.py"
    path.write_text(PORT.replace("MADE", made))
    plan = Plan(prompts=2, prompt_tokens=8, steps=2, windows=1, window_tokens=8)
    return score_target(str(path), plan=plan)


def test_a_model_that_sees_later_tokens_generates_no_text(tmp_path: Path) -> None:
    with pytest.raises(NotGenerativeError, match="It is no causal model"):
        score(tmp_path, "self.head(x + x.mean(1, keepdim=True))")


def test_a_model_without_logits_generates_no_text(tmp_path: Path) -> None:
    with pytest.raises(NotGenerativeError, match="it must return logits"):
        score(tmp_path, "x.mean((1, 2))")


def test_a_causal_model_is_scored(tmp_path: Path) -> None:
    scores = score(tmp_path, "self.head(x.cumsum(1) / 4)")
    assert scores.problems == ()  # type: ignore[attr-defined]
    assert scores.choices  # type: ignore[attr-defined]
