"""A sequence-parallel port: norms and residuals on each rank's own tokens, sums scattered by token."""

from collections.abc import Callable
from pathlib import Path

from tests.parallel import ports_sequences as sequences
from tests.parallel.ports import assert_aligned, first, judged
from tests.ranks import RankPool
from validator.checks.findings import Check

ATTENTION, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"


def test_a_healthy_port_is_aligned_and_each_ranks_term_is_judged(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(sequences.OWN_TOKENS, tmp_path, rank_pool)
    assert_aligned(result)
    terms = [(j.module, j.rank) for j in result.outcome.judgements if j.check is Check.PARTIAL]
    projections = (f"{ATTENTION}.o_proj", f"{MLP}.down_proj")
    assert [term for term in terms if term[0] in projections] == [(p, r) for p in projections for r in (0, 1)]


def test_sums_scattered_to_the_wrong_ranks_are_named_with_their_order(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(sequences.OWN_TOKENS, tmp_path, rank_pool, sequences.scattered_in_turn)
    assert [(f.module, f.into) for f in result.findings] == [(f"{ATTENTION}.o_proj", None)]
    assert "ranks 1,0 along token" in result.findings[0].summary


def test_a_scaled_term_is_one_ranks(tmp_path: Path, rank_pool: Callable[[int], RankPool]) -> None:
    result = judged(sequences.OWN_TOKENS, tmp_path, rank_pool, sequences.partial_scaled)
    assert result.findings[0].check is Check.PARTIAL
    assert first(result) == (f"{MLP}.down_proj", None, 1)
    assert {finding.module for finding in result.findings} == {f"{MLP}.down_proj"}


def test_own_tokens_with_own_channels_alone_are_named_at_the_module(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(sequences.OWN_TOKENS, tmp_path, rank_pool, sequences.not_gathered)
    assert [(f.module, f.into) for f in result.findings] == [(MLP, None)]


def test_a_shared_expert_on_own_tokens_with_own_channels_is_named(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    port = sequences.SHARED_EXPERT
    assert_aligned(judged(port, tmp_path, rank_pool))
    result = judged(port, tmp_path, rank_pool, sequences.shared_expert_by_token)
    assert [f.module for f in result.findings][:1] == [f"{MLP}.shared_expert"]
