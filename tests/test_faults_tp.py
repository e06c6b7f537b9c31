"""A fault planted in a port on two ranks is named first, with its rank where it is one rank's alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.planted import FAULTS, LAYERS, Expectation
from tests.ranks import RankPool
from tests.trials import judge, trial_of
from validator.checks.findings import Verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.tp == 2], ids=lambda fault: fault.fault)
def test_a_fault_of_a_sharded_port_is_named_first_with_its_rank(
    fault: Expectation, folder: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judge(trial_of(fault), folder, rank_pool)
    first = result.first_divergence
    assert fault.first_mistake(first, LAYERS[0]) == ""
    assert [finding.summary for finding in fault.innocent(result.findings, LAYERS[0])] == []
    assert first is result.findings[0]
    assert (f"rank {fault.rank}" in first.summary) == (fault.rank is not None)
    assert result.verdict is Verdict.DIVERGENT
    assert result.exit_code == 1
