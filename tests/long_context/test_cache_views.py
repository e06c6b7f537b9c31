"""Caches of transformers and of other engines show what they hold."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from validator.long_context.cache_views import CacheView, LayerView, layer_views
from validator.long_context.driving import CacheWatch
from validator.long_context.storages import sizes_of


def gemma(window: int = 12) -> Any:
    return transformers.Gemma2Config(
        num_hidden_layers=2, num_key_value_heads=2, head_dim=4, sliding_window=window, hidden_size=16
    )


def llama() -> Any:
    return transformers.LlamaConfig(
        num_hidden_layers=2, num_key_value_heads=2, hidden_size=16, num_attention_heads=4
    )


def filled(cache: Any, tokens: int, layers: int = 2) -> Any:
    rows = torch.randn(1, 2, tokens, 4, generator=torch.Generator().manual_seed(tokens))
    for layer in range(layers):
        cache.update(rows.clone(), rows.clone() + 1, layer)
    return cache


@pytest.mark.parametrize(
    ("cache", "held"),
    [
        (transformers.DynamicCache(), [20, 20]),
        (transformers.DynamicCache(config=gemma()), [11, 20]),
        (transformers.StaticCache(config=gemma(), max_cache_len=32), [12, 20]),
        (transformers.QuantizedCache(backend="fp8", config=llama()), [20, 20]),
    ],
    ids=["dynamic", "dynamic with a window", "static with a window", "quantised"],
)
def test_a_cache_of_transformers_shows_what_it_was_given_and_what_it_holds(
    cache: Any, held: list[int]
) -> None:
    views = layer_views(filled(cache, 20))
    assert views is not None
    assert [view.seen for view in views] == [20, 20]
    assert [view.held for view in views] == held
    for view in views:
        rows = view.rows()
        assert rows is None or rows[0].shape == (1, 2, view.held, 4)


def test_a_quantised_cache_shows_no_rows() -> None:
    views = layer_views(filled(transformers.QuantizedCache(backend="fp8", config=llama()), 4))
    assert views is not None
    assert views[0].rows() is None
    # One byte for each of 2 x 2 x 4 x 4 numbers, and a float32 scale for keys and for values.
    assert sum(sizes_of(views[0].tensors()).values()) == 64 + 2 * 4


@pytest.mark.parametrize(
    ("keys", "values", "dims"),
    [
        ((1, 2, 5, 4), (1, 2, 5, 4), (2, 2)),
        ((1, 5, 2, 4), (1, 5, 2, 4), (1, 1)),
        ((5, 1, 2, 4), (5, 1, 2, 4), (0, 0)),
        ((1, 2, 4, 5), (1, 2, 5, 4), (3, 2)),
    ],
    ids=["BKTD", "BTKD", "TBKD", "BKDT and BKTD"],
)
def test_pairs_in_a_tuple_are_a_cache_by_the_dims_that_count_tokens(
    keys: tuple[int, ...], values: tuple[int, ...], dims: tuple[int, int]
) -> None:
    pair = (torch.zeros(keys), torch.zeros(values))
    views = layer_views((pair, pair), dims)
    assert views is not None
    assert [view.held for view in views] == [5, 5]
    for view in views:
        assert [rows.shape for rows in view.rows() or ()] == [(1, 2, 5, 4)] * 2
        assert len(sizes_of(view.tensors())) == 2


def test_pairs_whose_dims_are_not_known_and_other_things_are_no_cache() -> None:
    pair = (torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    assert layer_views((pair, pair)) is None
    assert layer_views(object()) is None
    assert layer_views(()) is None


@dataclass
class PagedLayer:
    """A layer of an engine's own: pages of 4 tokens."""

    pages: list[Tensor] = field(default_factory=list)
    kind: str = "PagedLayer"
    seen: int = 6
    held: int = 6
    capacity: None = None
    block: int = 4

    def rows(self) -> None:
        return None

    def tensors(self) -> list[Tensor]:
        return self.pages


class PagedCache:
    def layer_views(self) -> Sequence[LayerView]:
        return [PagedLayer(pages=[torch.zeros(2, 4, 8)] * 2)]


def test_a_cache_of_another_engine_shows_itself_by_one_method() -> None:
    cache = PagedCache()
    assert isinstance(cache, CacheView)
    views = layer_views(cache)
    assert views is not None
    assert (views[0].kind, views[0].block) == ("PagedLayer", 4)
    assert sizes_of(views[0].tensors()) == {views[0].tensors()[0].data_ptr(): 256}


def test_a_watch_tells_which_tokens_changed_and_not_that_some_came_or_went() -> None:
    cache = filled(transformers.DynamicCache(config=gemma()), 8)
    watch = CacheWatch()
    views = layer_views(cache)
    assert views is not None
    assert [layer.changed for layer in watch.read(views, fed=8)] == [None, None]
    filled(cache, 8)  # the window's layer evicts five
    assert [layer.changed for layer in watch.read(views, fed=16)] == [None, None]
    cache.layers[1].values[0, 1, 3:5, 2] += 0.5
    cache.layers[0].keys[0, 0, -2, 0] *= -1
    assert [layer.changed for layer in watch.read(views, fed=16)] == [(14, 14), (3, 4)]
    assert [layer.row_bytes for layer in watch.read(views, fed=16)] == [64, 64]


def test_channels_that_pad_a_head_are_no_numbers_of_a_token() -> None:
    cache = filled(transformers.DynamicCache(), 8)
    for layer in cache.layers:
        layer.keys, layer.values = (torch.nn.functional.pad(x, (0, 12)) for x in (layer.keys, layer.values))
    views = layer_views(cache)
    assert views is not None
    (reading, _) = CacheWatch().read(views, fed=8)
    # Two heads of 4 channels, of keys and of values, in 16 channels each; float32.
    assert (reading.row_values, reading.row_bytes) == (16, 256)
