"""Ports whose logits are on the last of two ranks, or in parts on both, are judged as any other."""

from pathlib import Path
from typing import Any

import pytest

from tests.long_context.ports import target_file
from tests.long_context.test_judging import problems
from validator.errors import TargetError
from validator.long_context.judging import LongContext, examined
from validator.long_context.observing import LongRun

SHORT = {"max_position_embeddings": 112}
WINDOW = {
    **SHORT,
    "use_sliding_window": True,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention"],
}
SLOW = pytest.mark.slow


def judged(folder: Path, fault: str, *, family: str = "llama", **config: Any) -> LongContext:
    port = target_file(folder, family, fault=fault, made_by="staged_ports", **config)
    return examined(LongRun(source=str(port), nproc=2))


def test_a_healthy_pipeline_has_no_problem_and_each_stage_the_window_of_its_own_layer(tmp_path: Path) -> None:
    found = judged(tmp_path, "nothing", family="qwen2", **WINDOW)
    assert problems(found) == []
    assert found.holders.ranks == (1,)
    assert found.holders.problem is None
    assert found.across is not None
    assert found.is_shown
    assert found.prefix_problems == ()


def test_a_window_off_by_one_on_the_first_stage_shows_in_the_logits_of_the_last(tmp_path: Path) -> None:
    found = judged(tmp_path, "window_short", family="qwen2", **WINDOW)
    assert found.whole.problem is not None
    assert "It is what a sliding window of 11 in place of 12, off by one makes" in found.whole.problem
    (cache,) = found.cache_problems
    assert cache.startswith("on rank 0: the cache of layer 0 evicts too early")


@pytest.mark.slow
def test_a_block_that_is_cleared_on_the_last_stage_is_named_with_its_layer_and_rank(tmp_path: Path) -> None:
    found = judged(tmp_path, "block_cleared")
    (cache,) = found.cache_problems
    assert cache.startswith(
        "on rank 1: the cache of layer 1 changes what it holds: keys or values of tokens 16"
    )
    assert found.whole.errors.onset in range(128, 134)
    assert found.whole.culprit is not None
    assert (found.whole.culprit.module, found.whole.culprit.rank) == ("model.layers.1.self_attn", 1)


@pytest.mark.slow
def test_a_pipeline_without_logits_on_any_rank_ends_in_a_message(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="the candidate returned dict for tokens"):
        judged(tmp_path, "without_logits")


@pytest.mark.parametrize(
    ("fault", "is_healthy"),
    [
        pytest.param("head_in_parts", True, marks=SLOW),
        pytest.param("half_of_head_scaled", False, marks=SLOW),
    ],
)
def test_parts_of_the_vocabulary_are_put_together(tmp_path: Path, fault: str, is_healthy: bool) -> None:
    found = judged(tmp_path, fault)
    assert found.holders.ranks == (0, 1)
    assert (problems(found) == []) is is_healthy


@pytest.mark.parametrize(
    ("fault", "unequal"),
    [pytest.param("copies", (), marks=SLOW), pytest.param("other_copy", ((1, 0),), marks=SLOW)],
)
def test_a_rank_whose_copy_of_the_logits_differs_is_named(
    tmp_path: Path, fault: str, unequal: tuple[tuple[int, int], ...]
) -> None:
    found = judged(tmp_path, fault)
    assert problems(found) == []
    assert found.holders.copies == 2
    assert found.holders.unequal == unequal
