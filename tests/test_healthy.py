"""A healthy port is aligned, whatever its model, format, attention kernels, ranks, batch and padding.

Every pair of settings is here; `benchmarks/detection.py` runs all combinations.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.grid import healthy_grid, pairs, pairwise
from tests.models import Setup
from tests.ranks import RankPool
from tests.trials import Trial, judge
from validator.checks.findings import Verdict

# Modules and edges of the smallest of the models: a check that lost most of them would find nothing either.
FEWEST_EDGES = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("setup", pairwise(healthy_grid()), ids=lambda setup: setup.label)
def test_a_healthy_port_is_aligned(setup: Setup, folder: Path, rank_pool: Callable[[int], RankPool]) -> None:
    result = judge(Trial(setup=setup), folder, rank_pool)
    assert [finding.summary for finding in result.findings] == []
    assert result.verdict is Verdict.ALIGNED, result.outcome.why_inconclusive
    assert result.exit_code == 0
    assert result.outcome.unchecked == ()
    assert len(result.outcome.judgements) > FEWEST_EDGES


def test_the_selection_holds_every_pair_of_settings_and_is_much_shorter_than_the_grid() -> None:
    grid = healthy_grid()
    selected = pairwise(grid)
    assert set().union(*map(pairs, selected)) == set().union(*map(pairs, grid))
    assert len(selected) <= 18 < len(grid) / 10
