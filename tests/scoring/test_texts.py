"""The text that ships is the one of its provenance, and is read in windows."""

import hashlib
import json

import torch
from torch import nn

from validator.content import content_path
from validator.scoring.texts import TEXT, following, shipped_text, tokens_of, windows_of


def test_windows_do_not_overlap_and_a_short_text_is_one() -> None:
    assert windows_of(torch.arange(25), count=2, size=10).tolist() == torch.arange(20).view(2, 10).tolist()
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
