"""The text that ships is the one of its provenance, and is read in windows."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

from validator.content import content_path
from validator.scoring.texts import TEXT, following, shipped_text, tokens_of, windows_of


def test_windows_do_not_overlap_and_a_short_text_is_one() -> None:
    assert windows_of(torch.arange(25), count=2, size=10).tolist() == torch.arange(20).view(2, 10).tolist()
    assert windows_of(torch.arange(7), count=4, size=10).shape == (1, 7)


def test_what_follows_a_token_is_the_next_of_its_row() -> None:
    assert following(torch.tensor([[5, 6, 7], [1, 2, 3]])).tolist() == [[6, 7, -100], [2, 3, -100]]


class Named(nn.Module):
    """A model that knows which checkpoint it was loaded from."""

    def __init__(self, name: Path | str) -> None:
        super().__init__()
        self.config = SimpleNamespace(name_or_path=str(name))


def tokenizer_of_words(folder: Path) -> Path:
    """Write a tokenizer of two words, 300 and 301."""
    words = Tokenizer(models.WordLevel({"light": 300, "house": 301, "?": 302}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)
    return folder


def test_a_model_of_256_tokens_without_a_tokenizer_reads_bytes_and_nothing_is_to_be_told() -> None:
    found = tokens_of("aé", nn.Linear(1, 1), vocabulary=256)
    assert found.ids.tolist() == [97, 0xC3, 0xA9]
    assert found.note is None


def test_the_tokenizer_of_the_checkpoint_is_taken(tmp_path: Path) -> None:
    found = tokens_of("light house", Named(tokenizer_of_words(tmp_path)), vocabulary=512)
    assert (found.ids.tolist(), found.note) == ([300, 301], None)


def test_bytes_in_place_of_a_models_own_tokens_are_told_with_the_reason(tmp_path: Path) -> None:
    folder = tokenizer_of_words(tmp_path / "words")
    for model, vocabulary, why in (
        (nn.Linear(1, 1), 50, "the model names no checkpoint"),
        (
            Named("nobody/not-on-this-machine"),
            512,
            "no tokenizer of 'nobody/not-on-this-machine' can be loaded",
        ),
        (Named(tmp_path), 512, "holds no tokenizer"),
        (Named(folder), 301, "gives tokens that the model's 301 logits don't have"),
    ):
        found = tokens_of("light house", model, vocabulary=vocabulary)
        assert found.ids.tolist() == [byte % vocabulary for byte in b"light house"]
        assert found.note is not None
        assert why in found.note


def test_the_text_is_the_one_of_its_provenance() -> None:
    path = content_path("baselines", TEXT)
    told = json.loads((path.parent / "provenance.json").read_text(encoding="utf-8"))[path.name]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]
    assert len(shipped_text().split()) == told["words"]
    assert 300 <= told["words"] <= 600
