from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.bisecting.search import Reason, Side, Visit, hinted, is_monotone, search, visits

BLOCKS = tuple(f"layers.{i}" for i in range(12))
SIDES = st.lists(st.sampled_from(list(Side)), min_size=1, max_size=12)


def of(sides: Sequence[Side]) -> list[tuple[str, Side]]:
    return list(zip(BLOCKS, sides, strict=False))


def plan(
    hints: Sequence[str] = (), *, sizes: Sequence[int] = (1,) * 12, limit: int = 3, blocks: int = 12
) -> Iterator[Visit]:
    names = BLOCKS[:blocks]
    return visits(names, iter(hints), size_bytes=dict(zip(names, sizes, strict=False)), limit_bytes=limit)


@given(
    hints=st.lists(st.sampled_from([*BLOCKS, "elsewhere"]), max_size=4),
    sizes=st.lists(st.integers(1, 9), min_size=12, max_size=12),
    limit=st.integers(1, 40),
)
def test_every_block_is_looked_into_once_whatever_points_where(
    hints: list[str], sizes: list[int], limit: int
) -> None:
    looked = [block for visit in plan(hints, sizes=sizes, limit=limit) for block in visit.blocks]
    assert sorted(looked) == sorted(BLOCKS)


@given(sizes=st.lists(st.integers(1, 9), min_size=12, max_size=12), limit=st.integers(1, 40))
def test_a_sweep_goes_in_execution_order_and_takes_no_more_than_the_limit(
    sizes: list[int], limit: int
) -> None:
    swept = list(plan(sizes=sizes, limit=limit))
    assert [block for visit in swept for block in visit.blocks] == list(BLOCKS)
    by_name = dict(zip(BLOCKS, sizes, strict=True))
    for visit in swept:
        assert len(visit.blocks) == 1 or sum(by_name[block] for block in visit.blocks) <= limit
    for visit, after in pairwise(swept):
        assert sum(by_name[b] for b in (*visit.blocks, after.blocks[0])) > limit


@given(
    guilty=st.integers(0, 11),
    hints=st.lists(st.sampled_from(BLOCKS), max_size=4),
    limit=st.integers(1, 12),
)
def test_the_guilty_block_is_found_however_wrong_the_hints_are(
    guilty: int, hints: list[str], limit: int
) -> None:
    found = search(plan(hints, limit=limit), lambda visit: BLOCKS[guilty] in visit.blocks)
    assert found is not None
    assert BLOCKS[guilty] in found.blocks


@given(guilty=st.integers(0, 11))
def test_a_right_hint_costs_one_look_at_the_block_and_the_one_before(guilty: int) -> None:
    looks: list[Visit] = []

    def look(visit: Visit) -> bool:
        looks.append(visit)
        return BLOCKS[guilty] in visit.blocks

    search(plan([BLOCKS[guilty]]), look)
    (only,) = looks
    assert only == Visit(blocks=BLOCKS[max(guilty - 1, 0) : guilty + 1], reason=Reason.HINT)


def test_a_later_hint_is_asked_for_only_when_the_one_before_was_wrong() -> None:
    asked = []

    def hints() -> Iterator[str]:
        for block in ("layers.3", "layers.7"):
            asked.append(block)
            yield block

    names = dict.fromkeys(BLOCKS, 1)
    planned = visits(BLOCKS, hints(), size_bytes=names, limit_bytes=1)
    assert next(planned).blocks == ("layers.2", "layers.3")
    assert asked == ["layers.3"]
    assert next(planned).blocks == ("layers.6", "layers.7")


def test_nothing_is_found_where_nothing_is_guilty() -> None:
    assert search(plan(), lambda visit: False) is None
    assert len(list(plan())) == 4


@given(sides=SIDES)
def test_the_first_boundary_outside_is_the_hint_and_an_unclear_one_only_without(sides: list[Side]) -> None:
    hint = hinted(of(sides))
    if Side.OUTSIDE in sides:
        assert hint == BLOCKS[sides.index(Side.OUTSIDE)]
    elif Side.UNCLEAR in sides:
        assert hint == BLOCKS[sides.index(Side.UNCLEAR)]
    else:
        assert hint is None


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ("IIOO", True),
        ("IIII", True),
        ("OOOO", True),
        ("IOIO", False),
        ("IOCO", True),
        ("IOCI", False),
    ],
)
def test_boundaries_are_monotone_unless_one_is_inside_after_one_outside(sides: str, expected: bool) -> None:
    words = {"I": Side.INSIDE, "O": Side.OUTSIDE, "C": Side.UNCLEAR}
    assert is_monotone(of([words[letter] for letter in sides])) is expected
