"""Ports that are split over ranks, healthy and faulty, as `make detection` judges them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.cases import FAULTY, HEALTHY, PortCase
from tests.parallel.ports import assert_aligned, judged
from tests.ranks import RankPool
from tests.selecting import cases

Pool = Callable[[int], RankPool]


def first_of_kinds(chosen: Sequence[PortCase]) -> list[Any]:
    """Return cases as arguments of a test; `make test` runs the first of each kind of parallelism."""
    first = {case.kind: case.label for case in reversed(chosen)}
    return cases(chosen, quick=lambda case: first[case.kind] == case.label, label=lambda case: case.label)


@pytest.mark.parametrize("case", first_of_kinds(HEALTHY))
def test_a_healthy_port_is_aligned_and_all_of_it_is_checked(
    case: PortCase, tmp_path: Path, rank_pool: Pool
) -> None:
    assert_aligned(judged(case.port, tmp_path, rank_pool))


# Faults of routers are those of one process, on ranks: `make detection` has them all.
ONE_PROCESS_HAS_THEM = "routed expert"


@pytest.mark.parametrize(
    "case", first_of_kinds([case for case in FAULTY if case.kind != ONE_PROCESS_HAS_THEM])
)
def test_a_fault_is_named_with_its_module_its_rank_and_its_kind(
    case: PortCase, tmp_path: Path, rank_pool: Pool
) -> None:
    result = judged(case.port, tmp_path, rank_pool, case.spoil)
    assert case.mistake(result) == ""
