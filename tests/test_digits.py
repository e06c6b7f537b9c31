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
