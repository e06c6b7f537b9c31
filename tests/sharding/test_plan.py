"""Plans of where parts lie: torch's own chunking, strided shards, meshes, and totals that must add up."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from validator.capturing.records import Mesh, Placement
from validator.errors import LayoutError
from validator.sharding.plan import Holding, Part, Plan, plan_placements, plan_split, plan_sum
from validator.sharding.runs import Run

SHARD_0 = Placement(kind="shard", dim=0)
REPLICATE = Placement(kind="replicate")
PARTIAL = Placement(kind="partial", reduce="sum")


def mesh(*shape: int) -> Mesh:
    size = torch.Size(shape).numel()
    return Mesh(axes=tuple("abc"[: len(shape)]), shape=shape, ranks=tuple(range(size)))


def rows_held(plan: Plan, rank: int) -> list[int]:
    """Indices along dim 0 that a rank holds, in its own order."""
    (holding,) = (h for h in plan.holdings if h.rank == rank)
    return [row for run in sorted(holding.dims[0], key=lambda r: r.local[0]) for row in run.logical]


@given(st.integers(0, 40), st.integers(1, 7))
def test_an_uneven_shard_is_what_torch_chunk_gives(size: int, world: int) -> None:
    plan = plan_placements((size,), placements=[SHARD_0], mesh=mesh(world), ranks=range(world))
    chunks = [chunk.tolist() for chunk in torch.arange(size).chunk(world)] if size else []
    chunks += [[]] * (world - len(chunks))
    assert [rows_held(plan, rank) for rank in range(world)] == chunks


@given(
    size=st.integers(1, 30),
    axes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    strides=st.lists(st.integers(1, 3), min_size=3, max_size=3),
)
def test_strided_shards_on_several_axes_agree_with_dtensor(
    size: int, axes: list[int], strides: list[int]
) -> None:
    strides = strides[: len(axes)]
    ours = [Placement(kind="shard", dim=0, stride=stride) for stride in strides]
    theirs = [Shard(0) if s == 1 else _StridedShard(0, split_factor=s) for s in strides]
    ranks = mesh(*axes).ranks
    plan = plan_placements((size,), placements=ours, mesh=mesh(*axes), ranks=ranks)
    for rank, coordinate in zip(ranks, itertools.product(*map(range, axes)), strict=True):
        shape, offset = _compute_local_shape_and_global_offset((size,), tuple(axes), list(coordinate), theirs)
        (holding,) = (h for h in plan.holdings if h.rank == rank)
        assert holding.shape == shape
        held = rows_held(plan, rank)
        assert held == [] or min(held) == offset[0]


def test_a_strided_shard_lies_in_several_boxes() -> None:
    # 8 rows, cut by tp into halves first, then each half by dp: dp rank 0 of tp rank 0 and 1.
    placements = [Placement(kind="shard", dim=0, stride=2), SHARD_0]
    plan = plan_placements((8,), placements=placements, mesh=mesh(2, 2), ranks=range(4))
    assert [rows_held(plan, rank) for rank in range(4)] == [[0, 1], [4, 5], [2, 3], [6, 7]]
    one_axis = plan_placements((8,), placements=placements[:1], mesh=mesh(2), ranks=range(2))
    assert one_axis.parts((0,)) == (Part(rank=0, box=((0, 2),)), Part(rank=0, box=((4, 6),)))
    assert one_axis.shard_of(0) is None


def test_a_negative_dim_counts_from_the_end() -> None:
    placement = Placement(kind="shard", dim=-1)
    plan = plan_placements((3, 5), placements=[placement], mesh=mesh(2), ranks=range(2))
    assert plan.shard_of(0) == ((0, 3), (0, 3))
    assert plan.shard_of(1) == ((0, 3), (3, 5))


def test_ranks_along_a_replicated_axis_hold_copies() -> None:
    plan = plan_placements((4,), placements=[REPLICATE, SHARD_0], mesh=mesh(2, 2), ranks=range(4))
    assert plan.copies == ((0, 2), (1, 3))


def test_terms_of_a_sum_are_no_copies() -> None:
    plan = plan_placements((4,), placements=[REPLICATE, PARTIAL], mesh=mesh(2, 2), ranks=range(4))
    assert plan.copies == ((0, 2), (1, 3))
    assert plan.reduce == "sum"
    assert plan_sum((4,), ranks=(0, 1)).copies == ((0,), (1,))


def test_an_empty_shard_is_no_part() -> None:
    plan = plan_split((3,), dim=0, sizes={0: 3, 1: 0})
    assert plan.parts((0, 1)) == (Part(rank=0, box=((0, 3),)),)
    assert plan.shard_of(1) is None


def test_a_missing_rank_is_said_with_what_is_there() -> None:
    with pytest.raises(LayoutError, match=r"ranks \[0\] hold 2 of the 4 elements of a tensor \[4\]"):
        plan_placements((4,), placements=[SHARD_0], mesh=mesh(2), ranks=(0,))


def holding_of(rank: int, *intervals: tuple[int, int]) -> Holding:
    runs = [(Run(local=range(stop - start), logical=range(start, stop)),) for start, stop in intervals]
    return Holding(rank=rank, shape=tuple(stop - start for start, stop in intervals), dims=tuple(runs))


def test_what_several_ranks_hold_counts_once() -> None:
    plan = Plan(shape=(4,), holdings=(holding_of(0, (0, 3)), holding_of(1, (2, 4))))
    assert plan.copies == ((0,), (1,))
    with pytest.raises(LayoutError, match=r"ranks \[0, 1\] hold 3 of the 4 elements"):
        # As many as the tensor has, but two of them twice.
        Plan(shape=(4,), holdings=(holding_of(0, (0, 2)), holding_of(1, (1, 3))))


def test_a_hole_between_boxes_in_two_dims_is_found() -> None:
    with pytest.raises(LayoutError, match="hold 4 of the 6 elements"):
        Plan(shape=(2, 3), holdings=(holding_of(0, (0, 1), (0, 2)), holding_of(1, (1, 2), (1, 3))))


def test_parts_beyond_the_tensor_do_not_add_up() -> None:
    with pytest.raises(LayoutError, match=r"rank 1 holds position 4 of dim 0, of 4 in a tensor \[4\]"):
        plan_split((4,), dim=0, sizes={0: 3, 1: 2})


def test_an_element_beyond_the_tensor_does_not_stand_for_one_that_is_missing() -> None:
    with pytest.raises(LayoutError, match="rank 1 holds position 5"):
        Plan(shape=(4,), holdings=(holding_of(0, (0, 3)), holding_of(1, (5, 6))))


def test_a_dim_out_of_range_is_an_error() -> None:
    with pytest.raises(LayoutError, match=r"shard\(2\) of a tensor with 1 dims"):
        plan_placements((4,), placements=[Placement(kind="shard", dim=2)], mesh=mesh(2), ranks=range(2))


def test_different_reductions_of_one_tensor_are_an_error() -> None:
    placements = [PARTIAL, Placement(kind="partial", reduce="max")]
    with pytest.raises(LayoutError, match="partial in several ways"):
        plan_placements((4,), placements=placements, mesh=mesh(2, 2), ranks=range(4))
