"""What a candidate generates and reads is compared with the reference, and with an earlier version."""

from pathlib import Path
from typing import Any

import pytest
import torch

from validator.baselines.recording import RunOptions, record_run
from validator.content import content_path
from validator.errors import MismatchError, UsageError
from validator.scoring.alignment import Plan, score_target
from validator.scoring.baseline import find_baseline, read_logits, readable_baseline

PORT = str(content_path("examples", "tiny_dense.py"))
PLAN = Plan(prompts=2, prompt_tokens=12, steps=4, windows=2, window_tokens=24)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("baselines"), "candidate", include=("",))


def record(folder: Path, side: str, **options: Any) -> Path:
    run = RunOptions(dtype="bfloat16", **options)
    assert record_run("tiny_dense", PORT, side, folder=folder, options=run, noise=8).exit_code == 0
    return folder / "tiny_dense"


def test_a_healthy_candidate_is_aligned_with_the_reference_and_with_its_earlier_version(
    captured: Path,
) -> None:
    scores = score_target(PORT, plan=PLAN, baseline=captured)
    assert scores.problems == ()
    assert scores.unjudged == ()
    assert [score.steps for score in scores.choices] == [8, 8]
    assert scores.generated is not None
    assert scores.generated.figures.positions == 16
    assert scores.perplexity is not None
    assert scores.perplexity.tokens == 46
    assert scores.versus_baseline is not None
    # The same code on the same machine: not only near.
    assert scores.versus_baseline.figures.kl.max == 0
    assert scores.text_at_fault() is None


def test_a_candidate_that_changed_is_told_from_its_earlier_version(captured: Path) -> None:
    scores = score_target(PORT, plan=PLAN, baseline=captured, plant="rope-sign:layer=1")
    assert any("the KL divergence from the baseline tiny_dense" in text for text in scores.problems)


def test_a_baseline_is_found_by_the_name_of_the_target(captured: Path, tmp_path: Path) -> None:
    assert find_baseline(captured.parent, "somewhere/tiny_dense.py") == captured
    assert find_baseline(captured.parent, "other.py") is None
    (tmp_path / "other").mkdir()
    assert find_baseline(tmp_path, "other.py") is None
    assert readable_baseline(captured.parent, "tiny_dense.py") == captured


def test_a_baseline_holds_the_tokens_and_logits_of_its_first_call(captured: Path) -> None:
    stored = read_logits(captured)
    assert stored.ids.dtype is torch.int64
    assert stored.logits.shape == (*stored.ids.shape, 256)


@pytest.mark.parametrize(
    ("side", "include", "message"),
    [
        ("reference", "", "holds no run of the candidate"),
        ("candidate", "model.norm", "does not hold input_ids and logits"),
    ],
)
def test_a_baseline_without_the_candidates_own_call_says_what_to_record(
    tmp_path: Path, side: str, include: str, message: str
) -> None:
    path = record(tmp_path, side, include=(include,))
    with pytest.raises(MismatchError, match=message) as raised:
        read_logits(path)
    assert f"`validator baseline record tiny_dense {PORT}:candidate --update" in str(raised.value)
    assert readable_baseline(tmp_path, PORT) is None


@pytest.mark.parametrize("name", ["prompts", "prompt_tokens", "steps", "windows", "window_tokens"])
def test_a_plan_that_asks_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 0"):
        Plan(**{name: 0})
