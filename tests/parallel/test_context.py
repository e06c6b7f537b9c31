"""What is said of context-parallel ports beside what `cases` asks: the tokens, and declared layouts."""

from collections.abc import Callable
from pathlib import Path

from tests.parallel import ports_tokens as tokens
from tests.parallel.ports import judged
from tests.ranks import RankPool

PACKED = "(first=12|second=12)[cp:zigzag]"
DECLARED = {"*": f"input=_ {PACKED} ..., output=_ {PACKED} ..."}


def test_a_mask_that_is_wrong_at_the_boundary_is_named_with_the_tokens_of_the_rank(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(tokens.context_port("zigzag"), tmp_path, rank_pool, tokens.boundary_masked)
    assert result.findings[0].where["tokens"] == tokens.tokens_of("zigzag", 1, 2).tolist()


def test_positions_that_begin_anew_are_named_at_the_second_sequences_tokens(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    port = tokens.context_port("packed", layout=DECLARED)
    result = judged(port, tmp_path, rank_pool, tokens.positions_restart)
    assert {f.module for f in result.findings} == {"model.rotary_emb"}
    assert all(f.where["tokens"] == list(range(12, 24)) for f in result.findings)
