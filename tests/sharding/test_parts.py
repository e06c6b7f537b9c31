"""Which ranks held an element."""

import pytest

from validator.sharding import owner, ranks_of
from validator.sharding.plan import plan_copies, plan_split

SPLIT = plan_split((2, 6), dim=1, sizes={0: 4, 1: 2}).parts((0, 1))
COPIES = plan_copies((2, 6), ranks=(0, 1)).parts((0, 1))


@pytest.mark.parametrize(
    ("index", "rank"), [((0, 0), 0), ((1, 3), 0), ((0, 4), 1), ((1, 5), 1), ((0, 6), None)]
)
def test_an_element_of_a_shard_has_one_owner(index: tuple[int, int], rank: int | None) -> None:
    assert owner(SPLIT, index) == rank


def test_an_element_with_copies_has_no_owner() -> None:
    assert owner(COPIES, (0, 0)) is None


def test_a_copy_that_one_view_alone_holds_has_an_owner() -> None:
    assert owner([part for part in COPIES if part.rank == 1], (0, 0)) == 1


def test_ranks_of_elements_are_those_that_hold_any_of_them() -> None:
    assert ranks_of(SPLIT, [(0, 4), (1, 5)]) == (1,)
    assert ranks_of(SPLIT, [(0, 0), (1, 5)]) == (0, 1)
    assert ranks_of(COPIES, [(0, 0)]) == (0, 1)
    assert ranks_of(SPLIT, []) == ()
