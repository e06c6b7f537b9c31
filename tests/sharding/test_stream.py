"""Streaming gives what `unshard` gives, without any part being whole in memory."""

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.sharding.test_unshard import locals_of
from validator.capturing.records import Mesh, Placement
from validator.sharding import stream as streaming
from validator.sharding.plan import Plan, plan_copies, plan_placements, plan_split, plan_sum
from validator.sharding.stream import can_stream, stream


def cut(values: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    yield from values.reshape(-1).split(size)


def joined(plan: Plan, whole: torch.Tensor, size: int) -> torch.Tensor:
    parts = locals_of(plan, whole)
    return torch.cat(list(stream(plan, lambda rank: cut(parts[rank], size)))).reshape(plan.shape)


@given(
    outer=st.integers(1, 5),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    inner=st.integers(1, 4),
    cut_into=st.integers(1, 7),
    at_once=st.sampled_from([1, 20, 1 << 19]),
)
def test_shards_along_any_dim_come_in_the_order_of_the_whole(
    outer: int, sizes: list[int], inner: int, cut_into: int, at_once: int
) -> None:
    whole = torch.arange(outer * sum(sizes) * inner).reshape(outer, sum(sizes), inner)
    plan = plan_split(whole.shape, dim=1, sizes=dict(enumerate(sizes)))
    with mock.patch.object(streaming, "_BLOCK", at_once):
        assert torch.equal(joined(plan, whole, cut_into), whole)


def test_copies_come_from_the_rank_that_is_preferred() -> None:
    plan = plan_copies((4,), ranks=[0, 1])
    values = {rank: torch.full((4,), rank) for rank in (0, 1)}
    made = torch.cat(list(stream(plan, lambda rank: cut(values[rank], 3), prefer=(1,))))
    assert made.tolist() == [1, 1, 1, 1]


def test_sums_and_shards_of_two_dims_can_not_be_streamed() -> None:
    assert not can_stream(plan_sum((4,), ranks=[0, 1], reduce="sum"))
    mesh = Mesh(axes=("x", "y"), shape=(2, 2), ranks=(0, 1, 2, 3))
    both = [Placement(kind="shard", dim=0), Placement(kind="shard", dim=1)]
    plan = plan_placements((4, 4), placements=both, mesh=mesh, ranks=range(4))
    assert not can_stream(plan)
    with pytest.raises(ValueError, match="no part that follows"):
        next(stream(plan, lambda rank: cut(torch.zeros(4), 4)))


def test_every_rank_is_read_to_its_end_where_its_checksum_is_compared() -> None:
    plan = plan_split((2, 4), dim=1, sizes={0: 2, 1: 2})
    ended: list[int] = []

    def blocks(rank: int) -> Iterator[torch.Tensor]:
        yield torch.zeros(4)
        ended.append(rank)

    list(stream(plan, blocks))
    assert sorted(ended) == [0, 1]
