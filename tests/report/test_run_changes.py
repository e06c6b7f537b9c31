"""Which edges moved: planted moves, runs that differ by rounding alone, and the law that tells them apart."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray

from validator.checks.findings import Check, Verdict
from validator.report.run_changes import ALPHA, ZEROS, chance_factor, moved, uncounted
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
        (4096, (0.2, 0.65)),
        (128, (0.1, 0.9)),
        (LARGE, (0.0, 0.5)),
        (64, (0.0, 1e-9)),
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
        (SMALL, (0.0, 0.9)),
        (1, (0.001, 0.9)),
        (1, (0.0, 0.9)),
        (None, (0.0, 0.6)),
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


def test_where_nothing_differs_no_number_of_elements_is_missed() -> None:
    assert uncounted([run_of({"weight": 0.0}, {"weight": None})] * 2) == 0
    assert uncounted([run_of({"it": 0.2}, {"it": None})] * 2) == 1


def exceeds(fewest: int, most: int, factor: float) -> Fraction:
    """`P(A > factor B or B = 0)` for the largest of `most` and of `fewest` errors, multiplied out."""
    f, rest = Fraction(factor), Fraction(1 - ZEROS)
    return (1 - rest) ** fewest + sum(
        Fraction(fewest * comb(fewest - 1, k) * comb(most, j) * (-1) ** (k + j + 1))
        * rest ** (k + j + 1)
        / (k + 1 + j * f)
        for k in range(fewest)
        for j in range(1, most + 1)
    )


@pytest.mark.parametrize(
    ("fewest", "most", "chance"), [(8, 8, 0.2), (16, 64, 0.1), (32, 32, 1e-3), (80, 80, 1e-9)]
)
def test_the_factor_is_passed_with_the_chance_that_was_given_away(
    fewest: int, most: int, chance: float
) -> None:
    factor = chance_factor(fewest, most, chance)
    assert float(exceeds(fewest, most, factor)) == pytest.approx(chance, rel=1e-6)


def test_there_is_no_factor_where_all_errors_are_zero_with_that_chance() -> None:
    assert [math.isinf(chance_factor(16, 16, ZEROS**16 * more)) for more in (0.99, 1.0, 1.01)] == [
        True,
        True,
        False,
    ]


def test_errors_of_more_ranks_reach_further_and_so_must_a_move() -> None:
    factor = chance_factor(512, 512, ALPHA / 2)
    few, many = (
        RunEdge(verdict=Verdict.ALIGNED, max_over_band=error, elements=512, ranks=ranks)
        for error, ranks in ((0.1, 1), (0.1 * factor * 1.05, 64))
    )
    alone = [replace(run_of({}, {}), edges={name_of("it"): edge}) for edge in (few, many)]
    assert moved(alone) == ()
    assert moved([alone[0], replace(alone[1], edges={name_of("it"): replace(many, ranks=1)})]) == (
        name_of("it"),
    )


def test_of_many_elements_too() -> None:
    """A million largest errors of a million elements each, drawn by the inverse of their distribution."""
    drawn = -np.log(-np.expm1(np.log(np.random.default_rng(0).random((2, 1_000_000))) / LARGE))
    drawn += math.log(1 - ZEROS)
    passed = np.mean(drawn[0] > chance_factor(LARGE, LARGE, 0.01) * drawn[1])
    assert passed == pytest.approx(0.01, abs=5 * math.sqrt(0.01 * 0.99 / 1_000_000))


def rounded_sums(
    random: np.random.Generator, size: int, *, shift: int | NDArray[np.int64], unlike: bool = True
) -> Errors:
    """Errors over a half ulp of sums of two numbers of 8 bits rounded to 8 bits, as residual streams are.

    Args:
        random: draws the numbers.
        size: how many.
        shift: by how many bits the second number is smaller.
        unlike: whether signs are independent of each other; else they are equal.
    """
    signs = random.choice((-1, 1), size) if unlike else 1
    sums = (random.integers(128, 256, size) << shift) + signs * random.integers(128, 256, size)
    # An exact sum of 0 has no exponent, and no error.
    dropped = np.maximum(np.frexp(np.maximum(np.abs(sums), 1))[1] - 8, 0)
    scaled = np.ldexp(sums.astype(np.float64), -dropped)
    return np.abs(scaled - np.rint(scaled)) * 2


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8])
def test_no_sum_is_exact_more_often_than_stated(shift: int) -> None:
    exact = np.mean(rounded_sums(np.random.default_rng(0), 100_000, shift=shift) == 0)
    assert exact <= ZEROS + 5 * math.sqrt(ZEROS * (1 - ZEROS) / 100_000)
    # Equal exponents come as near to it as can be.
    assert exact > ZEROS - 0.01 if shift == 0 else exact < ZEROS - 0.01


SIZES = (1, 2, 4, 8, 16, 64, 512)


def pages(draw: Callable[[int], Errors], *, sizes: Sequence[int], runs: int, count: int) -> int:
    """On how many of so many pages of healthy runs an edge is told."""
    named: dict[str, int | None] = {f"{size} {n}": size for n, size in enumerate(sizes)}
    return sum(
        bool(
            told(
                named,
                *({name: float(draw(size or 1).max()) for name, size in named.items()} for _ in range(runs)),
            )
        )
        for _ in range(count)
    )


@pytest.mark.parametrize(
    "kind",
    [
        "exponential",
        "normal",
        "uniform",
        "rounded",
        "sum",
        "sum of one exponent",
        "sum of one sign",
        "small addend",
    ],
)
@pytest.mark.parametrize("sizes", [(2,), (8,), SIZES], ids=str)
def test_healthy_runs_are_told_of_on_fewer_pages_than_stated(kind: str, sizes: tuple[int, ...]) -> None:
    """With a rate of ALPHA, more than 7 of 200 pages come once in a thousand trials (binomial: 0.001)."""
    random = np.random.default_rng(0)
    draws: dict[str, Callable[[int], Errors]] = {
        "exponential": lambda size: random.exponential(0.05, size),
        "normal": lambda size: np.abs(0.1 * random.standard_normal(size)),
        "uniform": lambda size: random.uniform(0, 0.9, size),
        # One rounding to nearest and float32 noise before it, over the band of both.
        "rounded": lambda size: (
            np.abs(random.uniform(-0.5, 0.5, size) + 0.02 * random.standard_normal(size)) / 0.65
        ),
        # One rounding alone, which is exact at times.
        "sum": lambda size: rounded_sums(random, size, shift=random.integers(0, 5, size)),
        "sum of one exponent": lambda size: rounded_sums(random, size, shift=0),
        "sum of one sign": lambda size: rounded_sums(random, size, shift=1, unlike=False),
        "small addend": lambda size: rounded_sums(random, size, shift=4),
    }
    shown = pages(draws[kind], sizes=sizes, runs=3, count=200)
    assert ALPHA == 0.01
    assert shown <= 7
