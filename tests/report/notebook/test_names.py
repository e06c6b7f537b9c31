"""Names in a list to choose from, where the second of two equal ones can't be chosen."""

import pytest

from validator.report.notebook.names import told_apart


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "b", "a"], ["a (edge 0)", "b", "a (edge 2)"]),
        (["a", "a", "a (edge 1)"], ["a (edge 0)", "a (edge 1) (edge 1)", "a (edge 1) (edge 2)"]),
        ([], []),
    ],
)
def test_equal_names_get_their_number(names: list[str], told: list[str]) -> None:
    assert told_apart(names, "edge") == told


def test_names_that_look_like_told_names_stay_apart_too() -> None:
    names = ["a"] * 3 + [f"a (edge {n})" for n in range(6)] + [f"a (edge {n}) (edge {n})" for n in range(9)]
    assert len(set(told_apart(names, "edge"))) == len(names)
