"""The suite `long_context` passes on healthy ports, sharded too, and fails with the cause in its text."""

from pathlib import Path

import pytest

from tests.long_context.ports import target_file
from validator.content import content_path
from validator.long_context.judging import examined
from validator.long_context.observing import LongRun

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what the suite needs: pytest inside pytest forgets it, and torch registers nothing twice."""
    port = target_file(tmp_path_factory.mktemp("loaded"), "llama", fault="without_cache")
    assert examined(LongRun(source=str(port))).whole.problem is None


def run(pytester: pytest.Pytester, port: Path, *options: str) -> pytest.RunResult:
    suite = content_path("suites", "test_long_context.py")
    return pytester.runpytest_inprocess(
        str(suite), "--validator-target", str(port), "-p", "no:cacheprovider", "-p", "no:xdist", *options
    )


def text_of(result: pytest.RunResult) -> str:
    """Return all that was printed, in one line."""
    return " ".join(" ".join(result.outlines).split())


def test_a_healthy_port_passes_on_two_ranks(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = run(pytester, target_file(tmp_path, "gemma2"), "--validator-nproc", "2")
    result.assert_outcomes(passed=7)
    # Each rank has half of the heads: 2 x 2 x 16 channels x 2 bytes, in the one layer that grows.
    assert "cache growth 128 bytes/token (limit 128 bytes/token)" in text_of(result)


def test_a_healthy_port_without_a_window_or_a_cache_skips_what_needs_them(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    result = run(pytester, target_file(tmp_path, "llama", fault="without_cache"), "-rs")
    result.assert_outcomes(passed=1, skipped=6)
    assert "the candidate's forward takes no cache" in text_of(result)
    assert "the reference has no sliding window" in text_of(result)


def test_a_window_off_by_one_fails_with_its_cause_on_one_screen(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    result = run(pytester, target_file(tmp_path, "gemma2", fault="window_short"))
    result.assert_outcomes(passed=2, failed=4, skipped=1)
    text = text_of(result)
    assert "the error leaves its noise at position 11, 1 before the edge of the sliding window of 12" in text
    assert "It is what a sliding window of 11 in place of 12, off by one makes" in text
    assert "evicts too early" in text
    assert "Traceback" not in text


def test_a_leak_fails_with_the_module_that_keeps_it(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = run(pytester, target_file(tmp_path, "llama", fault="kept_in_a_list"))
    result.assert_outcomes(passed=3, failed=1, skipped=3)
    assert "They are kept in model.layers.1.mlp.history" in text_of(result)


@pytest.mark.parametrize(
    ("family", "fault", "failed", "cause"),
    [
        ("gemma2", "without_eviction", 2, "the cache of layer 0 never evicts: after 288 tokens it holds 288"),
        pytest.param(
            "llama",
            "narrow_positions",
            1,
            "It is what positions in bfloat16 in the rotary embedding makes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "llama",
            "block_cleared",
            2,
            "the cache of layer 1 changes what it holds: keys or values of tokens 16 to 31",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_cache_or_positions_that_are_wrong_fail_with_their_cause(
    pytester: pytest.Pytester, tmp_path: Path, family: str, fault: str, failed: int, cause: str
) -> None:
    result = run(pytester, target_file(tmp_path, family, fault=fault))
    assert result.parseoutcomes()["failed"] == failed
    assert cause in text_of(result)


@pytest.mark.slow
def test_a_window_as_long_as_the_context_is_not_crossed_and_skips_what_crosses_it(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    port = target_file(tmp_path, "gemma2", sliding_window=512, max_position_embeddings=512)
    result = run(pytester, port, "-rs")
    result.assert_outcomes(passed=4, skipped=3)
    assert "no decoding crosses the edge of the sliding window of 512: it is too wide" in text_of(result)
    assert "no prompt is longer than the sliding window of 512" in text_of(result)


@pytest.mark.slow
def test_a_long_run_goes_up_to_the_last_position(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = run(pytester, target_file(tmp_path, "llama"), "--validator-long")
    result.assert_outcomes(passed=4, skipped=3)
    assert "positions 512 tokens" in text_of(result)
