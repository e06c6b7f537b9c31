"""Candidates are called with a cache, whatever they call it and however they return it."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from validator.errors import TargetError
from validator.long_context.calling import cache_argument, ported
from validator.long_context.noise import measured_band
from validator.long_context.prefixes import share_prefix

VOCABULARY = 12


class Tail:
    """The cache of a foreign engine: the sum of what it was fed."""

    def __init__(self, total: Tensor) -> None:
        self.total = total


class Foreign(nn.Module):
    """Logits of a running sum, with a cache that it returns beside them; it has no `use_cache`."""

    def __init__(self, form: str = "tuple", *, is_locked: bool = False, masked: float | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.form, self.is_locked, self.masked = form, is_locked, masked

    def forward(self, input_ids: Tensor, cache: Any = None) -> Any:
        x = self.embed(input_ids).cumsum(1) + (0 if cache is None else cache.total)
        logits = self.head(x / 4)
        if self.masked is not None:
            logits = torch.cat((logits[..., :-1], torch.full_like(logits[..., -1:], self.masked)), -1)
        kept = Tail(x[:, -1:])
        if self.is_locked:
            kept.lock = threading.Lock()  # type: ignore[attr-defined]
        if self.form == "means":
            return logits.mean(-1)
        return (logits, kept) if self.form == "tuple" else {"logits": logits, "cache": kept}


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_a_cache_is_fed_back_without_use_cache_from_a_tuple_or_a_dict(form: str) -> None:
    model, ids = Foreign(form), torch.arange(10)[None]
    assert cache_argument(model) == "cache"
    whole, _ = ported(model, ids, cache=None, argument="cache")
    first, cache = ported(model, ids[:, :6], cache=None, argument="cache")
    rest, _ = ported(model, ids[:, 6:], cache=cache, argument="cache", fed=6)
    torch.testing.assert_close(torch.cat((first, rest)), whole)


def test_a_model_that_returns_no_logits_is_one_message() -> None:
    with pytest.raises(TargetError, match="it must return logits of each"):
        ported(Foreign("means"), torch.zeros(1, 2, dtype=torch.int64), cache=None, argument=None)


def test_a_cache_that_can_not_be_copied_shares_no_prefix() -> None:
    text = torch.arange(40) % VOCABULARY
    assert share_prefix(Foreign(), text, prefix=8) is not None
    assert share_prefix(Foreign(is_locked=True), text, prefix=8) is None


@pytest.mark.parametrize("masked", [-torch.inf, -1e35, -1e9, -1e4])
def test_a_padded_vocabulary_that_is_masked_makes_no_noise(masked: float) -> None:
    tokens = torch.arange(20) % VOCABULARY

    def sigma(masked: float | None) -> Tensor:
        return measured_band(lambda: Foreign(masked=masked), tokens, dtype=torch.bfloat16).sigma

    plain, padded = sigma(None), sigma(masked)
    assert bool((padded < 2 * plain.max()).all())
    assert bool((padded > 0).all())
