"""Which edges moved: planted moves, runs that differ by rounding alone, and the law that tells them apart."""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray

from validator.checks.findings import Check, Verdict
from validator.report.run_changes import ALPHA, chance_factor, moved, uncounted
from validator.report.stored_runs import EdgeName, RunEdge, StoredRun

Errors = NDArray[np.float64]
LARGE, SMALL = 1 << 20, 8


def name_of(module: str) -> EdgeName:
    return EdgeName(module=module, check=Check.FUNCTION, into=None, path="", call=0)


def run_of(errors: Mapping[str, float | None], sizes: Mapping[str, int | None]) -> StoredRun:
    edges = {
        name_of(module): RunEdge(verdict=Verdict.ALIGNED, max_over_band=error, elements=sizes[module])
        for module, error in errors.items()
    }
    return StoredRun(
        name="run", verdict=Verdict.ALIGNED, findings=(), edges=edges, kl_mean=None, top1=None, document={}
    )


def told(sizes: Mapping[str, int | None], *runs: Mapping[str, float | None]) -> list[str]:
    return [name.module for name in moved([run_of(errors, sizes) for errors in runs])]


def of_one(size: int | None, *errors: float | None) -> bool:
    """Whether an edge is told that has these errors, one a run, on a page of a thousand others."""
    sizes = {f"other{n}": LARGE for n in range(1000)}
    steady = dict.fromkeys(sizes, 0.5)
    return told({**sizes, "it": size}, *({**steady, "it": error} for error in errors)) == ["it"]


@pytest.mark.parametrize(
    ("size", "errors"),
    [
        (LARGE, (0.2, 0.6)),
        (LARGE, (0.2, 0.2, 0.2, 0.6)),
        (LARGE, (0.6, 0.2)),
        (4096, (0.2, 0.6)),
        (SMALL, (0.01, 0.9)),
        (LARGE, (0.0, 0.5)),
        (LARGE, (0.5, math.nan)),
        (SMALL, (math.inf, 0.5)),
        (None, (math.nan, 0.5)),
        (SMALL, (math.inf, math.nan)),
    ],
)
def test_a_move_that_rounding_does_not_make_is_told(size: int | None, errors: tuple[float, ...]) -> None:
    assert of_one(size, *errors)


@pytest.mark.parametrize(
    ("size", "errors"),
    [
        (SMALL, (0.3, 0.6)),
        (SMALL, (0.1, 0.9)),
        (1, (0.001, 0.9)),
        (LARGE, (0.5, 0.6)),
        (4096, (0.5, 0.8)),
        (None, (0.2, 0.6)),
        (LARGE, (0.0, 0.0)),
        (LARGE, (math.inf, math.inf)),
        (LARGE, (math.nan, math.nan)),
        (LARGE, (0.2, None)),
        (LARGE, (None, None)),
    ],
)
def test_what_rounding_may_make_is_no_move(size: int | None, errors: tuple[float | None, ...]) -> None:
    assert not of_one(size, *errors)


def test_the_largest_moves_come_first() -> None:
    sizes = {"a": LARGE, "b": LARGE, "c": LARGE}
    assert told(sizes, {"a": 0.1, "b": 0.1, "c": 0.1}, {"a": 0.4, "b": 0.9, "c": 0.1}) == ["b", "a"]


def test_an_edge_has_the_size_that_it_has_in_the_run_where_it_is_smallest() -> None:
    runs = [run_of({"it": error}, {"it": size}) for error, size in ((0.2, LARGE), (0.6, SMALL))]
    assert moved(runs) == ()
    assert uncounted(runs) == 0
    assert uncounted([*runs, run_of({"it": 0.2}, {"it": None})]) == 1


def exceeds(fewest: int, most: int, factor: float) -> Fraction:
    """`P(A > factor B)` for the largest of `most` and of `fewest` exponential errors, multiplied out."""
    f = Fraction(factor)
    return sum(
        Fraction(fewest * comb(fewest - 1, k) * comb(most, j) * (-1) ** (k + j + 1)) / (k + 1 + j * f)
        for k in range(fewest)
        for j in range(1, most + 1)
    )


def test_where_nothing_differs_no_number_of_elements_is_missed() -> None:
    assert uncounted([run_of({"weight": 0.0}, {"weight": None})] * 2) == 0
    assert uncounted([run_of({"it": 0.2}, {"it": None})] * 2) == 1


@pytest.mark.parametrize(("fewest", "most"), [(1, 1), (2, 2), (8, 8), (2, 32), (32, 32)])
@pytest.mark.parametrize("chance", [0.1, 1e-3, 1e-9])
def test_the_factor_is_passed_with_the_chance_that_was_given_away(
    fewest: int, most: int, chance: float
) -> None:
    factor = chance_factor(fewest, most, chance)
    assert float(exceeds(fewest, most, factor)) == pytest.approx(chance, rel=1e-6)


def test_of_many_elements_too() -> None:
    """A million largest errors of a million elements each, drawn by the inverse of their distribution."""
    drawn = -np.log(-np.expm1(np.log(np.random.default_rng(0).random((2, 1_000_000))) / LARGE))
    passed = np.mean(drawn[0] > chance_factor(LARGE, LARGE, 0.01) * drawn[1])
    assert passed == pytest.approx(0.01, abs=5 * math.sqrt(0.01 * 0.99 / 1_000_000))


def pages(draw: Callable[[tuple[int, ...]], Errors], *, runs: int, count: int) -> Sequence[list[str]]:
    """What is told on so many pages of healthy runs: 40 edges of one, of a few and of many elements."""
    sizes: dict[str, int | None] = {f"{size} {n}": size for size in (1, 8, 64, 512) for n in range(10)}
    found = []
    for _ in range(count):
        errors = [
            {name: float(draw((size or 1,)).max()) for name, size in sizes.items()} for _ in range(runs)
        ]
        found.append(told(sizes, *errors))
    return found


@pytest.mark.parametrize("kind", ["exponential", "normal", "uniform", "rounded"])
def test_healthy_runs_are_told_of_on_fewer_pages_than_stated(kind: str) -> None:
    """With a rate of ALPHA, more than 7 of 200 pages come once in a thousand trials (binomial: 0.001)."""
    random = np.random.default_rng(0)
    draws: dict[str, Callable[[tuple[int, ...]], Errors]] = {
        "exponential": lambda shape: random.exponential(0.05, shape),
        "normal": lambda shape: np.abs(0.1 * random.standard_normal(shape)),
        "uniform": lambda shape: random.uniform(0, 0.9, shape),
        # One rounding to nearest and float32 noise before it, over the band of both.
        "rounded": lambda shape: (
            np.abs(random.uniform(-0.5, 0.5, shape) + 0.02 * random.standard_normal(shape)) / 0.65
        ),
    }
    shown = pages(draws[kind], runs=3, count=200)
    assert ALPHA == 0.01
    assert sum(map(bool, shown)) <= 7
