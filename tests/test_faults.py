"""A fault planted in one process is named first, and nothing but what it spoils is blamed."""

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


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.tp == 1], ids=lambda fault: fault.fault)
def test_a_planted_fault_is_named_first_and_nothing_downstream_is_blamed(
    fault: Expectation, folder: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judge(trial_of(fault), folder, rank_pool)
    assert fault.first_mistake(result.first_divergence, LAYERS[0]) == ""
    assert [finding.summary for finding in fault.innocent(result.findings, LAYERS[0])] == []
    assert result.first_divergence is result.findings[0]
    assert result.verdict is Verdict.DIVERGENT
    assert result.exit_code == 1
