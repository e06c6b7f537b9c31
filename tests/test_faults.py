"""A fault planted in one process is named first, and nothing but what it spoils is blamed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.planted import Expectation, expected
from tests.ranks import RankPool
from tests.trials import judge, trial_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("fault", expected(tp=1))
def test_a_planted_fault_is_named_first_and_nothing_downstream_is_blamed(
    fault: Expectation, folder: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judge(trial_of(fault), folder, rank_pool)
    assert fault.mistake(result, fault.layers[0]) == ""
    assert result.exit_code == 1
