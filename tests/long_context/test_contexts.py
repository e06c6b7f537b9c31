"""What a configuration says of positions, windows and chunks is read under all its names."""

from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from torch import nn

from validator.long_context.contexts import Context, Window, context_of


def context(config: Any) -> Context:
    model = nn.Module()
    model.config = config
    return context_of(model)


@pytest.mark.parametrize(
    "name", ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "block_size"]
)
def test_the_number_of_positions_is_read_under_each_of_its_names(name: str) -> None:
    assert context(SimpleNamespace(**{name: 77})).limit == 77


def test_the_number_of_positions_is_transformers_before_a_block_s() -> None:
    config = SimpleNamespace(block_size=64, max_position_embeddings=4096)
    assert context(config).limit == 4096
    assert context(transformers.GPT2Config(n_positions=99)).limit == 99


@pytest.mark.parametrize("config", [SimpleNamespace(), SimpleNamespace(n_positions=0, block_size=None)])
def test_a_model_that_does_not_say_has_no_limit(config: Any) -> None:
    assert context(config) == context_of(nn.Module()) == Context()


def test_chunked_attention_is_no_sliding_window() -> None:
    llama4 = transformers.Llama4TextConfig(
        num_hidden_layers=2, attention_chunk_size=8, layer_types=["chunked_attention", "full_attention"]
    )
    assert context(llama4).windows == (Window(size=8, is_chunked=True), None)
    gemma = transformers.Gemma2Config(
        num_hidden_layers=2, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    )
    assert context(gemma).windows == (Window(size=8), None)


def test_a_chunk_needs_what_is_before_in_it_and_a_window_the_last_tokens() -> None:
    window, chunk = Window(size=8), Window(size=8, is_chunked=True)
    assert [window.needed(fed) for fed in (0, 5, 7, 8, 9, 20)] == [0, 5, 7, 7, 7, 7]
    assert [chunk.needed(fed) for fed in (0, 5, 7, 8, 9, 20)] == [0, 5, 7, 0, 1, 4]
    assert (list(window.edges(30)), list(chunk.edges(30)), list(chunk.edges(8))) == ([8], [8, 16, 24], [])
    assert (str(window), str(chunk)) == ("sliding window of 8", "attention chunk of 8")


def test_the_smallest_window_is_the_one_to_cross() -> None:
    found = Context(windows=(Window(size=64), None, Window(size=8, is_chunked=True), Window(size=64)))
    assert found.window == Window(size=8, is_chunked=True)
    assert found.distinct == (Window(size=8, is_chunked=True), Window(size=64))
    assert (found.window_of(0), found.window_of(1), found.window_of(9)) == (Window(size=64), None, None)
    assert Context().window is None
