"""How many bits packed codes have is told from the sizes of all ranks' parts."""

import pytest

from validator.quantised.packing import PackedCodes, column_parts


def codes(words: int, copies: str) -> PackedCodes:
    """Return codes of a weight of 128 columns, whose rows are 16 words of 4 bits or 32 of 8."""
    return PackedCodes(words=words, columns=128, checksums=tuple(copies))


SPLITS = {
    "4 bits on one rank": ({"x": codes(16, "a")}, {"x": 1}),
    "8 bits on one rank": ({"x": codes(32, "a")}, {"x": 1}),
    "4 bits in halves": ({"x": codes(8, "ab")}, {"x": 2}),
    "8 bits in halves": ({"x": codes(16, "ab"), "up": codes(32, "ab")}, {"x": 2, "up": 1}),
    "8 bits in quarters": ({"x": codes(8, "abcd"), "up": codes(32, "abcd")}, {"x": 4, "up": 1}),
    "4 bits by rows": ({"x": codes(16, "ab"), "down": codes(8, "ab")}, {"x": 1, "down": 2}),
    "copies of 4 bits beside 8": ({"x": codes(16, "aa"), "up": codes(32, "ab")}, {"x": 1, "up": 1}),
    "none is certain": ({"x": codes(16, "ab"), "y": codes(16, "cd")}, {"x": 1, "y": 1}),
    "both are certain": (
        {"x": codes(16, "ab"), "four": codes(8, "ab"), "eight": codes(32, "ab")},
        {"x": 0, "four": 2, "eight": 1},
    ),
    "no number of bits fits": ({"x": codes(12, "ab")}, {"x": 1}),
}


@pytest.mark.parametrize("case", SPLITS)
def test_columns_are_split_as_sizes_and_copies_say(case: str) -> None:
    weights, parts = SPLITS[case]
    assert column_parts(weights) == parts
