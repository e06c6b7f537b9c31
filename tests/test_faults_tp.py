"""A fault planted in a port on two ranks is named first, with its rank where it is one rank's alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.planted import Expectation, expected
from tests.ranks import RankPool
from tests.trials import judge, trial_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("fault", expected(tp=2))
def test_a_fault_of_a_sharded_port_is_named_first_with_its_rank(
    fault: Expectation, folder: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judge(trial_of(fault), folder, rank_pool)
    assert fault.mistake(result, fault.layers[0]) == ""
    assert (f"rank {fault.rank}" in result.findings[0].summary) == (fault.rank is not None)
    assert result.exit_code == 1
