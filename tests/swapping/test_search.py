import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.swapping.search import Evaluations, find_smallest

ITEMS = tuple(range(9))


def smallest_size(values: Evaluations[int], items: tuple[int, ...], limit: float) -> int:
    return next(
        size
        for size in range(len(items) + 1)
        if any(values(chosen) >= limit for chosen in combinations(items, size))
    )


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=9),
    st.floats(0.01, 1.0),
)
def test_of_contributions_that_add_up_a_smallest_set_is_found(parts: list[int], share: float) -> None:
    items = tuple(range(len(parts)))
    limit = max(share * sum(parts), 0.5)
    values = Evaluations[int](lambda chosen: float(sum(parts[i] for i in chosen)))
    found = find_smallest(items, values, limit=limit)
    if sum(parts) < limit:
        assert found is None
        return
    assert found is not None
    assert found.value == sum(parts[member.item] for member in found.members) >= limit
    assert len(found.members) == smallest_size(values, items, limit)
    for member in found.members:
        assert member.alone == member.lost_from_set == member.lost_from_whole == parts[member.item]
    assert found.rest == sum(parts) - found.value


@given(st.sets(st.sampled_from(ITEMS), min_size=1, max_size=5))
def test_items_that_act_only_together_are_found(planted: set[int]) -> None:
    values = Evaluations[int](lambda chosen: 1.0 if planted <= chosen else 0.0)
    found = find_smallest(ITEMS, values, limit=0.9)
    assert found is not None
    assert {member.item for member in found.members} == planted
    assert all(member.lost_from_set == 1.0 for member in found.members)


@given(st.data())
def test_whatever_the_values_are_the_set_reaches_the_limit_and_needs_each_member(data: st.DataObject) -> None:
    items = tuple(range(5))
    table = {
        frozenset(chosen): data.draw(st.integers(0, 9))
        for size in range(6)
        for chosen in combinations(items, size)
    }
    values = Evaluations[int](lambda chosen: float(table[chosen]))
    limit = data.draw(st.integers(1, 9))
    found = find_smallest(items, values, limit=limit)
    if table[frozenset(items)] < limit:
        assert found is None
        return
    assert found is not None
    chosen = frozenset(member.item for member in found.members)
    assert table[chosen] == found.value >= limit
    assert all(table[chosen - {item}] < limit for item in chosen)
    assert found.is_smallest  # of five items all smaller sets can be tried
    assert len(chosen) == smallest_size(values, items, limit)


def test_errors_that_cancel_are_no_contribution() -> None:
    errors = {0: 3.0, 1: -3.0, 2: 2.0}
    values = Evaluations[int](lambda chosen: abs(sum(errors[i] for i in chosen)))
    found = find_smallest((0, 1, 2), values, limit=2.0)
    assert found is not None
    assert [member.item for member in found.members] == [0]
    assert found.members[0].lost_from_whole == 2.0 - 1.0


def test_a_set_is_run_once() -> None:
    seen: list[frozenset[int]] = []

    def evaluate(chosen: frozenset[int]) -> float:
        seen.append(chosen)
        return float(len(chosen))

    values = Evaluations[int](evaluate)
    find_smallest(ITEMS, values, limit=7.0)
    assert len(seen) == len(set(seen)) == values.runs


def test_where_smaller_sets_are_too_many_it_does_not_claim_to_have_tried_them() -> None:
    values = Evaluations[int](lambda chosen: float(len(chosen)))
    found = find_smallest(ITEMS, values, limit=7.0, spare_runs=10)
    assert found is not None
    assert (len(found.members), found.is_smallest) == (7, False)


def test_where_no_item_is_needed_the_set_is_empty() -> None:
    found = find_smallest(ITEMS, Evaluations[int](lambda chosen: 1.0), limit=1.0)
    assert found is not None
    assert found.members == ()


@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_what_all_items_do_not_show_no_set_explains(value: float) -> None:
    assert find_smallest(ITEMS, Evaluations[int](lambda chosen: value), limit=1.0) is None


def test_infinite_values_are_explained_too() -> None:
    values = Evaluations[int](lambda chosen: math.inf if 4 in chosen else 0.0)
    found = find_smallest(ITEMS, values, limit=math.inf)
    assert found is not None
    assert [member.item for member in found.members] == [4]
    assert found.members[0].lost_from_whole == math.inf
