"""Additive masks of float16, which large scores overcome."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models import Setup
from tests.ranks import RankPool
from tests.stimuli import Stimulus
from tests.trials import Trial, judge
from validator.checks.masks import FAR, LOWEST, with_far_masks
from validator.report.result import Result

MASK = torch.tensor([[0.0, LOWEST], [0.0, 0.0]], dtype=torch.float64)
SCORES = torch.tensor([[-70000.0, 3.0], [1.0, 2.0]], dtype=torch.float64)
HALF = (torch.float16, torch.float16)


def test_a_mask_that_scores_can_overcome_goes_lower() -> None:
    scores, mask = with_far_masks([SCORES, MASK], HALF)
    assert torch.equal(scores, SCORES)
    assert mask.tolist() == [[0.0, FAR], [0.0, 0.0]]


def test_the_mask_may_come_first() -> None:
    mask, scores = with_far_masks([MASK, SCORES], HALF)
    assert float(mask[0, 1]) == FAR
    assert torch.equal(scores, SCORES)


@pytest.mark.parametrize(
    ("other", "mask", "dtypes"),
    [
        (SCORES / 100, MASK, HALF),
        (SCORES, MASK, (torch.bfloat16, torch.bfloat16)),
        (SCORES, torch.where(MASK == 0, 0.5, MASK), HALF),
        (SCORES, torch.zeros_like(MASK), HALF),
    ],
    ids=["scores that are small", "another format", "values that are no mask", "a mask of nothing"],
)
def test_other_sums_stay_as_they_are(other: Tensor, mask: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    assert all(x is y for x, y in zip(with_far_masks([other, mask], dtypes), (other, mask), strict=True))


def _judged(kernel: str, folder: Path) -> Result:
    setup = Setup(family="qwen2", dtype="float16", cand_kernel=kernel, seed=5, stimulus=Stimulus.HUGE_BIASES)
    return judge(Trial(setup=setup), folder, _no_ranks)


def _no_ranks(world_size: int) -> RankPool:
    raise AssertionError(f"asked for {world_size} ranks")


def test_a_kernel_whose_mask_is_boolean_is_not_blamed_for_scores_beyond_float16(tmp_path: Path) -> None:
    assert _judged("sdpa", tmp_path).verdict == "aligned"


def test_code_whose_scores_overflow_is(tmp_path: Path) -> None:
    first = _judged("eager", tmp_path).first_divergence
    assert first is not None
    assert (first.module, first.arm) == ("model.layers.0.self_attn", "CLASS")
