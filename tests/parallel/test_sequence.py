"""What is said of sequence-parallel ports beside what `cases` asks: each rank's term, and the order."""

from collections.abc import Callable
from pathlib import Path

from tests.parallel import ports_sequences as sequences
from tests.parallel.cases import ATTENTION, MLP
from tests.parallel.ports import judged
from tests.ranks import RankPool
from validator.checks.findings import Check


def test_each_ranks_term_is_judged(tmp_path: Path, rank_pool: Callable[[int], RankPool]) -> None:
    result = judged(sequences.OWN_TOKENS, tmp_path, rank_pool)
    terms = [(j.module, j.rank) for j in result.outcome.judgements if j.check is Check.PARTIAL]
    projections = (f"{ATTENTION}.o_proj", f"{MLP}.down_proj")
    assert [term for term in terms if term[0] in projections] == [(p, r) for p in projections for r in (0, 1)]


def test_sums_scattered_to_the_wrong_ranks_are_named_with_their_order(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(sequences.OWN_TOKENS, tmp_path, rank_pool, sequences.scattered_in_turn)
    assert "ranks 1,0 along token" in result.findings[0].summary
