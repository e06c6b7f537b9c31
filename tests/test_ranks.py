"""The pool that other tests run their ranks on."""

import os
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.ranks import JobError, RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.close()


def summed(rank: int, world_size: int, start: float) -> tuple[int, int, float, int]:
    value = torch.tensor(start + rank)
    dist.all_reduce(value)
    return rank, world_size, value.item(), os.getpid()


def raises_on_all(rank: int, world_size: int) -> None:
    raise KeyError(f"planted on rank {rank}")


def raises_on_rank_1_alone(rank: int, world_size: int) -> None:
    if rank == 1:
        raise ValueError("planted on rank 1")
    time.sleep(600)


def test_results_come_in_rank_order_from_processes_that_outlive_a_job_that_raises(
    pool: RankPool,
) -> None:
    first = pool.run(summed, 10.0)
    assert [answer[:3] for answer in first] == [(0, 2, 21.0), (1, 2, 21.0)]
    with pytest.raises(JobError, match="in raises_on_all") as failure:
        pool.run(raises_on_all)
    assert [repr(error) for error in failure.value.errors.values()] == [
        "KeyError('planted on rank 0')",
        "KeyError('planted on rank 1')",
    ]
    assert pool.run(summed, 10.0) == first


def test_a_rank_that_never_answers_costs_the_pool_and_not_the_session(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.ranks.AFTER_FIRST_ERROR_S", 0.1)
    before = [pid for *_, pid in pool.run(summed, 0.0)]
    with pytest.raises(JobError, match="planted on rank 1") as failure:
        pool.run(raises_on_rank_1_alone)
    assert failure.value.missing == [0]
    after = [pid for *_, pid in pool.run(summed, 0.0)]
    assert not set(before) & set(after)
