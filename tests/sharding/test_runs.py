"""Runs of a dim: they are the places that they were made of, and few."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from validator.sharding.runs import Run, covered, intervals, runs_of


@given(st.lists(st.integers(-1, 12), max_size=14))
def test_runs_are_the_places_they_were_made_of(places: list[int]) -> None:
    made = [-1] * len(places)
    for run in runs_of(np.array(places, dtype=np.int64)):
        for local, logical in zip(run.local, run.logical, strict=True):
            assert made[local] == -1
            made[local] = logical
    assert made == places


def test_an_interleaved_order_takes_as_few_runs_as_segments() -> None:
    places = np.arange(11008).reshape(2, -1).T.reshape(-1)
    assert runs_of(places) == (
        Run(local=range(0, 11007, 2), logical=range(5504)),
        Run(local=range(1, 11008, 2), logical=range(5504, 11008)),
    )


@given(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=20))
def test_intervals_hold_each_place_once(places: list[int]) -> None:
    found = intervals(runs_of(np.array(places, dtype=np.int64)))
    assert [place for start, stop in found for place in range(start, stop)] == sorted(places)
    assert all(stop < start for (_, stop), (start, _) in pairwise(found))


def test_elements_that_several_hold_are_counted_once() -> None:
    rows, columns = runs_of(np.array([0, 2, 1])), runs_of(np.array([3, 1]))
    other = runs_of(np.array([1, 4]))
    assert covered((5, 4), [(rows, columns)]) == 6
    assert covered((5, 4), [(rows, columns), (other, columns)]) == 8
    assert covered((5, 4), []) == 0
    assert covered((), [()]) == 1
