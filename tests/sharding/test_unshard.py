"""Putting tensors together: joining undoes splitting, and copies come from the ranks asked for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.capturing.records import Mesh, Placement
from validator.errors import LayoutError
from validator.sharding.plan import Plan, plan_copies, plan_placements, plan_split, plan_sum
from validator.sharding.unshard import shard, unshard


def locals_of(plan: Plan, whole: torch.Tensor) -> dict[int, torch.Tensor]:
    """Cut a tensor as the plan says."""
    return {holding.rank: shard(plan, whole, holding.rank) for holding in plan.holdings}


placements = st.one_of(
    st.just(Placement(kind="replicate")),
    st.builds(Placement, kind=st.just("shard"), dim=st.integers(-2, 1), stride=st.integers(1, 3)),
)


@given(
    shape=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    axes=st.lists(st.tuples(st.integers(1, 4), placements), min_size=1, max_size=3),
)
def test_splitting_and_joining_is_the_identity(
    shape: tuple[int, int], axes: list[tuple[int, Placement]]
) -> None:
    sizes = tuple(size for size, _ in axes)
    ranks = tuple(range(torch.Size(sizes).numel()))
    mesh = Mesh(axes=("x",) * len(axes), shape=sizes, ranks=ranks)
    plan = plan_placements(shape, placements=[p for _, p in axes], mesh=mesh, ranks=ranks)
    whole = torch.arange(shape[0] * shape[1]).reshape(shape)
    assert torch.equal(unshard(plan, locals_of(plan, whole).__getitem__), whole)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_shards_of_any_sizes_join_in_rank_order(sizes: list[int]) -> None:
    whole = torch.arange(3 * sum(sizes)).reshape(3, -1)
    parts = dict(enumerate(torch.split(whole, sizes, dim=1)))
    plan = plan_split(whole.shape, dim=1, sizes=dict(enumerate(sizes)))
    assert torch.equal(unshard(plan, parts.__getitem__), whole)


def test_a_shard_in_the_wrong_place_changes_the_result() -> None:
    whole = torch.arange(6)
    plan = plan_split((6,), dim=0, sizes={0: 3, 1: 3})
    swapped = dict(enumerate(reversed(whole.chunk(2))))
    assert not torch.equal(unshard(plan, swapped.__getitem__), whole)


@pytest.mark.parametrize(("prefer", "rank"), [((), 0), ((1,), 1), ((1, 2), 1), ((2,), 2)])
def test_a_copy_is_read_from_the_lowest_preferred_rank(prefer: tuple[int, ...], rank: int) -> None:
    plan = plan_copies((2,), ranks=(0, 1, 2))
    copies = {r: torch.full((2,), r) for r in range(3)}
    assert unshard(plan, copies.__getitem__, prefer=prefer).tolist() == [rank, rank]


def test_terms_are_added_wide_and_rounded_once() -> None:
    # In bfloat16, 256 + 1 is 256: added one after the other the ones would be lost.
    terms = {rank: torch.tensor([value], dtype=torch.bfloat16) for rank, value in enumerate((256, 1, 1))}
    total = unshard(plan_sum((1,), ranks=terms), terms.__getitem__)
    assert total.dtype == torch.bfloat16
    assert total.item() == 258


@pytest.mark.parametrize(("reduce", "value"), [("sum", 8.0), ("avg", 4.0), ("max", 6.0), ("min", 2.0)])
def test_terms_are_reduced_as_the_placement_says(reduce: str, value: float) -> None:
    terms = {0: torch.tensor([2.0]), 1: torch.tensor([6.0])}
    assert unshard(plan_sum((1,), ranks=terms, reduce=reduce), terms.__getitem__).item() == value


def test_an_unknown_reduction_is_an_error() -> None:
    terms = {0: torch.tensor([2.0]), 1: torch.tensor([6.0])}
    with pytest.raises(LayoutError, match="'bxor'"):
        unshard(plan_sum((1,), ranks=terms, reduce="bxor"), terms.__getitem__)


def test_a_tensor_of_another_shape_than_its_place_is_an_error() -> None:
    plan = plan_split((6,), dim=0, sizes={0: 3, 1: 3})
    parts = {0: torch.zeros(3), 1: torch.zeros(1)}
    with pytest.raises(LayoutError, match=r"rank 1 holds \[1\] where its place is \[3\]"):
        unshard(plan, parts.__getitem__)
