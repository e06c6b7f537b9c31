"""A healthy port is aligned, whatever its model, format, attention kernels, ranks, batch and padding.

Every pair of settings of the dense families is here; `benchmarks/detection.py` runs those of all families.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.grid import fields_of, healthy_grid, pairs, pairwise
from tests.models import DENSE, Setup
from tests.ranks import RankPool
from tests.selecting import cases
from tests.trials import Trial, judge
from validator.checks.findings import Verdict

# Modules and edges of the smallest of the models: a check that lost most of them would find nothing either.
FEWEST_EDGES = 150

GRID = [setup for family in DENSE for setup in healthy_grid(family)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


# One in two is quick: together they still have every setting, if not every pair.
QUICK = frozenset(setup.label for setup in pairwise(GRID)[::2])


@pytest.mark.parametrize(
    "setup",
    cases(pairwise(GRID), quick=lambda setup: setup.label in QUICK, label=lambda setup: setup.label),
)
def test_a_healthy_port_is_aligned(setup: Setup, folder: Path, rank_pool: Callable[[int], RankPool]) -> None:
    result = judge(Trial(setup=setup), folder, rank_pool)
    assert [finding.summary for finding in result.findings] == []
    assert result.verdict is Verdict.ALIGNED, result.outcome.why_inconclusive
    assert result.exit_code == 0
    assert result.outcome.unchecked == ()
    assert len(result.outcome.judgements) > FEWEST_EDGES


def test_the_selection_holds_every_pair_of_settings_and_is_much_shorter_than_the_grid() -> None:
    def held(setups: list[Setup]) -> set[object]:
        return set().union(*(pairs(fields_of(setup)) for setup in setups))

    selected = pairwise(GRID)
    assert held(selected) == held(GRID)
    assert len(selected) <= 18 < len(GRID) / 10
