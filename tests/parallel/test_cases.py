"""Ports that are split over ranks, healthy and faulty, as `make detection` judges them."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.cases import FAULTY, HEALTHY, PortCase
from tests.parallel.ports import assert_aligned, judged
from tests.ranks import RankPool

Pool = Callable[[int], RankPool]

# Cases of a kind of parallelism that `make test` runs, healthy ones and faults each; the others are slow.
QUICK = 2


def cases(chosen: Sequence[PortCase]) -> list[Any]:
    """Return cases as arguments of a test."""
    before = Counter[str]()
    params = []
    for case in chosen:
        marks = () if before[case.kind] < QUICK else pytest.mark.slow
        before[case.kind] += 1
        params.append(pytest.param(case, id=case.label, marks=marks))
    return params


@pytest.mark.parametrize("case", cases(HEALTHY))
def test_a_healthy_port_is_aligned_and_all_of_it_is_checked(
    case: PortCase, tmp_path: Path, rank_pool: Pool
) -> None:
    assert_aligned(judged(case.port, tmp_path, rank_pool))


# Faults of routers are those of one process, on ranks: `make detection` has them all.
ONE_PROCESS_HAS_THEM = "routed expert"


@pytest.mark.parametrize("case", cases([case for case in FAULTY if case.kind != ONE_PROCESS_HAS_THEM]))
def test_a_fault_is_named_with_its_module_its_rank_and_its_kind(
    case: PortCase, tmp_path: Path, rank_pool: Pool
) -> None:
    result = judged(case.port, tmp_path, rank_pool, case.spoil)
    assert case.mistake(result) == ""
