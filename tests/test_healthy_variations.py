"""What real ports do differently for good reasons is aligned: each variation on the first of its models.

`benchmarks/detection.py` runs all of them, over several seeds.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.changes import nothing
from tests.models import Setup, checkpoint, inputs, load_candidate
from tests.ranks import RankPool
from tests.selecting import cases
from tests.trials import Trial, judge
from tests.variations import NOT_RECREATED, VARIATIONS
from validator.checks.findings import Verdict

REPORTS = (
    "tp-degree-order",
    "tp-loss-diff",
    "tp-tie-break",
    "batch-size",
    "batch-invariance",
    "shape-dispatch-ulp",
    "chunked-prefill",
    "eager-vs-sdpa",
    "sdpa-gen-flaky",
    "flash-tolerance-headdim",
    "inductor-fusion",
    "compile-vs-fp64",
    "tf32-default",
    "tf32-ort",
    "gelu-rewrite",
    "swa-parameter-convention",
    "pp-gradnorm-order",
    "prompt-cache-memory",
    "gelu-accepted-approx",
    "microbatch-ratio",
    "bf16-vs-fp16-flash",
)
"""Ids of the collection of healthy variations."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


# The others differ from one of these in a format, or in a number.
QUICK = (
    "summed-over-2-ranks-bfloat16",
    "tied-logits",
    "other-tiles",
    "chunked-prefill",
    "tiles-of-4-keys",
    "sdpa",
    "fused",
    "tf32",
    "gelu-of-a-cube",
    "window-by-distance",
)


@pytest.mark.parametrize("name", cases(VARIATIONS, quick=QUICK.__contains__))
def test_a_healthy_variation_is_aligned(
    name: str, folder: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judge(Trial(setup=VARIATIONS[name].setups[0], variation=name), folder, rank_pool)
    assert [finding.summary for finding in result.findings] == []
    assert result.verdict is Verdict.ALIGNED, result.outcome.why_inconclusive


@pytest.mark.parametrize(
    "name",
    # The same mask from another number changes no bit.
    [name for name, v in VARIATIONS.items() if v.apply is not nothing and name != "window-by-distance"],
)
def test_a_variation_changes_bits(name: str, folder: Path) -> None:
    def changes(setup: Setup) -> bool:
        path, given = checkpoint(setup, folder), inputs(setup)
        with torch.no_grad():
            plain = load_candidate(setup, path)(**given).logits
            varied = Trial(setup=setup, variation=name).candidate(path)(**given).logits
        return not torch.equal(varied, plain)

    # A change below the storage format's roundoff may show in a finer format alone, on some processors.
    assert any(changes(setup) for setup in VARIATIONS[name].setups)


def test_every_report_is_recreated_or_left_out_for_a_reason() -> None:
    recreated = {report for variation in VARIATIONS.values() for report in variation.zoo}
    assert recreated | set(NOT_RECREATED) == set(REPORTS)
    assert not recreated & set(NOT_RECREATED)
