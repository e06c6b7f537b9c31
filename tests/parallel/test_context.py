"""Context-parallel ports: tokens dealt to the ranks in an order that their ids tell, or a layout."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallel import ports_tokens as tokens
from tests.parallel.ports import Port, assert_aligned, first, judged
from tests.ranks import RankPool
from validator.checks.findings import Check

PACKED = "(first=12|second=12)[cp:zigzag]"
DECLARED = {"*": f"input=_ {PACKED} ..., output=_ {PACKED} ..."}
HEALTHY = {
    "contiguous": tokens.context_port("contiguous"),
    "packed, told by ids": tokens.context_port("packed"),
    "zigzag, experts": tokens.context_port("zigzag", family="qwen3-moe"),
}


@pytest.mark.parametrize("port", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_split_of_tokens_is_aligned(
    port: Port, tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    assert_aligned(judged(port, tmp_path, rank_pool))


def test_a_mask_that_is_wrong_at_the_boundary_is_named_at_attention_with_rank_and_tokens(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(tokens.context_port("zigzag"), tmp_path, rank_pool, tokens.boundary_masked)
    attention = "model.layers.1.self_attn"
    assert [first(result)] == [(f.module, f.into, f.rank) for f in result.findings]
    assert first(result) == (attention, f"{attention}.o_proj", 1)
    assert result.findings[0].where["tokens"] == tokens.tokens_of("zigzag", 1, 2).tolist()


def test_positions_of_a_contiguous_split_for_tokens_in_turn_are_named_at_the_rotary_tables(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(tokens.context_port("interleaved"), tmp_path, rank_pool, tokens.positions_contiguous)
    assert {(f.module, f.check) for f in result.findings} == {("model.rotary_emb", Check.FUNCTION)}


def test_positions_that_begin_anew_are_named_at_the_second_sequences_tokens(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    port = tokens.context_port("packed", layout=DECLARED)
    result = judged(port, tmp_path, rank_pool, tokens.positions_restart)
    assert {f.module for f in result.findings} == {"model.rotary_emb"}
    assert all(f.where["tokens"] == list(range(12, 24)) for f in result.findings)
