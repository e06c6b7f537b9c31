"""The dim of a bare cache that counts tokens is the one that grows, whatever its layout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.long_context.staged_ports import token_dims_of_stages
from tests.ranks import RankPool
from validator.long_context.cache_layouts import token_dims
from validator.long_context.contexts import Context
from validator.long_context.driving import Drive, drive
from validator.long_context.observing import reference_sizes
from validator.long_context.occupancy import occupancy
from validator.long_context.schedules import Schedule

HEADS, CHANNELS, VOCABULARY = 2, 4, 16
SCHEDULE = Schedule(chunks=(8, 8), decoded=16)
PROMPT = torch.arange(SCHEDULE.total) % VOCABULARY
LAYOUTS = {"BKTD": (0, 2, 1, 3), "BTKD": (0, 1, 2, 3), "TBKD": (1, 0, 2, 3), "BKDT": (0, 2, 3, 1)}


class Bare(nn.Module):
    """Returns a bare tuple of keys and values a layer, kept in a layout of its own.

    Args:
        layout: of keys and of values.
        fault: `cleared` or `dropped` once 20 tokens are in the cache, or allocated `ahead`.
    """

    def __init__(self, layout: str, fault: str = "") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, HEADS * CHANNELS)
        self.embed.weight.data = torch.randn(VOCABULARY, HEADS * CHANNELS, generator=generator)
        self.order, self.fault = LAYOUTS[layout], fault

    def forward(self, input_ids: Tensor, past_key_values: Any = None) -> Any:
        x = self.embed(input_ids)
        new = x.unflatten(-1, (HEADS, CHANNELS))  # [B, T, K, D]
        inverse = sorted(range(4), key=self.order.__getitem__)
        if past_key_values is not None and self.fault != "ahead":
            new = torch.cat((past_key_values[0][0].permute(inverse), new), 1)
        if self.fault == "ahead":
            new = new.new_ones(1, 64, HEADS, CHANNELS)
        if self.fault == "cleared" and new.shape[1] > 20:
            new[:, 3:5] = 0
        if self.fault == "dropped" and new.shape[1] > 20:
            new = new[:, 1:]
        kept = new.permute(self.order)
        return x @ self.embed.weight.T, ((kept, kept + 1),) * 2


def dims(model: nn.Module) -> tuple[int, int] | None:
    _, cache = model(PROMPT[None, :5])
    return token_dims(model, "past_key_values", cache)


def driven(layout: str, fault: str = "") -> Drive:
    return drive(Bare(layout, fault), PROMPT, SCHEDULE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_healthy_cache_shows_its_tokens_in_every_layout(layout: str) -> None:
    dim = LAYOUTS[layout].index(1)
    assert dims(Bare(layout)) == (dim, dim)
    found = driven(layout)
    assert [reading.layers[1].held for reading in found.readings] == [r.fed for r in found.readings]
    assert {reading.layers[0].row_values for reading in found.readings} == {2 * HEADS * CHANNELS}
    assert occupancy(found, Context()).problems == ()
    assert reference_sizes(Bare(layout)).token_values == (16, 16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_that_are_cleared_or_dropped_are_named_in_every_layout(layout: str) -> None:
    (text,) = occupancy(driven(layout, "cleared"), Context()).problems
    assert "layers 0, 1 changes what it holds: keys or values of tokens 3 to 4" in text
    (text,) = occupancy(driven(layout, "dropped"), Context()).problems
    assert "layers 0, 1 evicts too early" in text


def test_a_cache_that_is_allocated_ahead_does_not_show_what_it_holds() -> None:
    assert dims(Bare("BTKD", "ahead")) is None
    assert all(reading.layers == () for reading in driven("BTKD", "ahead").readings)


def test_a_model_without_such_a_cache_has_no_layout() -> None:
    assert token_dims(Bare("BTKD"), None, None) is None
    assert token_dims(Bare("BTKD"), "past_key_values", object()) is None


def test_a_stage_without_layers_goes_on_with_its_neighbour(rank_pool: Callable[[int], RankPool]) -> None:
    assert rank_pool(2).run(token_dims_of_stages) == [None, (1, 1)]


def test_a_model_that_takes_no_single_token_has_no_layout() -> None:
    class Picky(Bare):
        def forward(self, input_ids: Tensor, past_key_values: Any = None) -> Any:
            if input_ids.shape[1] == 1:
                raise ValueError("at least two tokens")
            return super().forward(input_ids, past_key_values)

    assert dims(Picky("BTKD")) is None
