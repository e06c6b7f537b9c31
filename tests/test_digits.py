import math

import pytest

from validator import digits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (4.0, "4.0"),
        (0.9, "0.90"),
        (0.996, "1.0"),
        (31.44, "31.4"),
        (99.96, "100"),
        (2048.0, "2048"),
        (0.0123, "1.2e-2"),
        (-5.1e-4, "-5.1e-4"),
        (3.21e7, "3.2e7"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        ("-inf", "-inf"),
    ],
)
def test_a_number_has_two_or_three_digits(value: float | str, text: str) -> None:
    assert digits.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.994, "0.99"),
        (0.9951, "0.995"),
        (0.9999, "0.9999"),
        (0.99999999, "0.9999"),
        (1.0, "1.0"),
        (1.00000001, "1.0001"),
        (1.0001, "1.0001"),
        (1.02, "1.02"),
        (1.049, "1.05"),
        (1.06, "1.1"),
        (491.2, "491"),
        (0.0, "0"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_ratio_to_a_limit_is_told_on_its_side_of_the_limit(value: float, text: str) -> None:
    assert digits.ratio(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (30, 2048, "1.5%"),
        (1, 10**6, "1.0e-4%"),
        (0, 10, "0.0%"),
        (10, 10, "100.0%"),
        (9999, 10000, "99.99%"),
        (10**9 - 1, 10**9, "over 99.99%"),
    ],
)
def test_a_share_that_is_not_all_or_nothing_never_looks_like_it(part: int, whole: int, text: str) -> None:
    assert digits.percent(part, whole) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([6, 7], "6-7"),
        ([3, 4, 5, 9], "3-5, 9"),
        ([1, 0], "1, 0"),
        (list(range(100)), "0-99"),
        ([0, 2, 4, 6], "0, 2, 4, 6"),
        (list(range(0, 20, 2)), "0, 2, 4, 6 and 6 more"),
        ([0, 3, 4, 5, 7, 14, 20, 21, 22, 23], "0, 3-5, 7, 14 and 4 more"),
    ],
    ids=str,
)
def test_a_list_of_indices_counts_those_that_it_leaves_out(numbers: list[int], text: str) -> None:
    assert digits.index_list(numbers) == text
    head, _, left = text.partition(" and ")
    shown = sum(1 if first == last else int(last) - int(first) + 1 for first, last in _ends(head))
    assert shown + int(left.split()[0] if left else 0) == len(numbers)


def _ends(head: str) -> list[tuple[str, str]]:
    parts = (part.split("-") for part in head.split(", ") if part)
    return [(part[0], part[-1]) for part in parts]
