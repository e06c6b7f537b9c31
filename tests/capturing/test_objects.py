"""Of objects that are handed over, such as caches, a capture holds which one it is."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from validator.capturing.objects import ObjectNumbers
from validator.capturing.reader import open_capture
from validator.capturing.session import capture


class Cache:
    def __init__(self) -> None:
        self.length = 0

    def get_seq_length(self) -> int:
        return self.length


class Model(nn.Module):
    def forward(self, x: torch.Tensor, cache: Any = None) -> tuple[torch.Tensor, Any]:
        cache = Cache() if cache is None else cache
        cache.length += x.shape[1]
        return x + 1, cache


def test_calls_that_are_handed_one_cache_can_be_told(tmp_path: Path) -> None:
    model, x = Model(), torch.zeros(1, 3)
    with capture(model, tmp_path / "a.h5"):
        _, cache = model(x)
        model(x, cache)
        model(x, Cache())
    first, second, third = open_capture(tmp_path / "a.h5").rank(0).calls
    assert first.objects[0] == {}
    assert first.objects[1]["1"].length == 3
    handed = second.objects[0]["cache"]
    assert (handed, handed.type.rpartition(".")[2]) == (first.objects[1]["1"], "Cache")
    assert third.objects[0]["cache"].number != handed.number
    assert "cache" not in second.inputs


def test_an_object_keeps_its_number_and_another_one_gets_its_own() -> None:
    numbers, first = ObjectNumbers(), Cache()
    found = [numbers.describe(item) for item in (first, Cache(), first)]
    assert [item and item["number"] for item in found] == [0, 1, 0]


def test_functions_classes_and_modules_are_left_out() -> None:
    numbers = ObjectNumbers()
    assert [numbers.describe(item) for item in (len, Cache, nn.Linear(1, 1), object())] == [None] * 4


def test_a_cache_whose_length_can_not_be_told_has_none() -> None:
    class Odd:
        def get_seq_length(self) -> int:
            raise NotImplementedError

    described = ObjectNumbers().describe(Odd())
    assert described is not None
    assert described["length"] is None
