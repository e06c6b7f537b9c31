"""Single elements of an edge: the values that the file has, and no more of it than is shown."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest

from validator.checks.findings import Check
from validator.checks.judged_values import Elements, JudgedValues, StoredEdge
from validator.report.notebook.elements import (
    MEASURES,
    SIDE,
    View,
    dim_names,
    elements_figure,
    first_view,
)
from validator.report.result import Result


@pytest.fixture
def values(faulty: Result, kept: Path) -> JudgedValues:
    return JudgedValues(kept / "judged.h5")


@pytest.fixture
def edge(values: JudgedValues) -> StoredEdge:
    """What goes into the head, of shape (2, 32, 128): channel 40 is wrong."""
    return next(e for e in values.edges if (e.check, e.into) == (Check.WIRING, "head"))


def read(values: JudgedValues, edge: StoredEdge) -> dict[str, np.ndarray]:
    held = values.read(edge)
    return {name: getattr(held, name) for name in ("oracle", "candidate", "allowed")}


def error(oracle: np.ndarray, candidate: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return MEASURES["error / allowed"](Elements(oracle=oracle, candidate=candidate, allowed=allowed))


def test_the_first_view_is_around_the_worst_element(edge: StoredEdge, faulty: Result) -> None:
    assert faulty.first_divergence is not None
    worst = faulty.first_divergence.evidence.worst_index
    assert first_view(edge, worst) == View(rows=1, columns=2, start=(worst[0], 0, 0))


def stored(*shape: int) -> StoredEdge:
    return StoredEdge(
        module="m",
        check=Check.FUNCTION,
        path="",
        call=0,
        order=0,
        ranks=(0,),
        dims=("",) * len(shape),
        shape=shape,
    )


@pytest.mark.parametrize(
    ("shape", "worst", "view"),
    [
        ((), (), View(rows=None, columns=None, start=())),
        ((500,), (499,), View(rows=None, columns=0, start=(500 - SIDE,))),
        ((500, 600), (250, 3), View(rows=0, columns=1, start=(250 - SIDE // 2, 0))),
        ((4, 500, 600), None, View(rows=1, columns=2, start=(0, 0, 0))),
    ],
)
def test_a_view_stays_inside_of_the_edge(
    shape: tuple[int, ...], worst: tuple[int, ...] | None, view: View
) -> None:
    assert first_view(stored(*shape), worst) == view


def reading(oracle: np.ndarray, candidate: np.ndarray) -> mock.Mock:
    """A file of one edge, of which 1 is allowed."""
    return mock.Mock(
        **{"read.return_value": Elements(oracle=oracle, candidate=candidate, allowed=np.ones_like(oracle))}
    )


@pytest.mark.parametrize("measure", MEASURES)
def test_only_what_is_shown_is_read_and_that_once(measure: str) -> None:
    zeros = np.zeros((SIDE, 100))
    reader, edge = reading(zeros, zeros), stored(4, 1000, 600)
    elements_figure(reader, edge, View(rows=1, columns=2, start=(3, 200, 500)), measure)
    reader.read.assert_called_once_with(edge, (3, slice(200, 200 + SIDE), slice(500, 600)))


def test_dims_of_the_same_meaning_have_names_of_their_own() -> None:
    """As of attention's scores: else the second could not be chosen."""
    edge = replace(stored(1, 2, 3, 4, 5), dims=("batch", "head", "token", "token", ""))
    assert dim_names(edge) == ["batch", "head", "token (dim 2)", "token (dim 3)", "dim 4"]
    zeros = np.zeros((3, 4))
    view = View(rows=2, columns=3, start=(0,) * 5)
    layout = elements_figure(reading(zeros, zeros), edge, view, "oracle")["layout"]
    assert [layout[axis]["title"]["text"] for axis in ("yaxis", "xaxis")] == [
        "token (dim 2)",
        "token (dim 3)",
    ]


@pytest.mark.parametrize("measure", ["oracle", "candidate", "allowed"])
def test_values_are_those_of_the_file(values: JudgedValues, edge: StoredEdge, measure: str) -> None:
    (shown,) = elements_figure(values, edge, View(rows=1, columns=2, start=(1, 0, 0)), measure)["data"]
    expected = read(values, edge)[measure][1]
    finite = [[v if np.isfinite(v) else None for v in row] for row in expected.tolist()]
    assert shown["z"] == finite
    assert (shown["x"], shown["y"]) == (list(range(128)), list(range(32)))


def test_any_two_dims_can_be_shown_either_way(values: JudgedValues, edge: StoredEdge) -> None:
    (across,) = elements_figure(values, edge, View(rows=2, columns=0, start=(0, 5, 0)), "oracle")["data"]
    assert across["z"] == read(values, edge)["oracle"][:, 5, :].T.tolist()


def test_the_error_of_the_planted_channel_alone_is_beyond_what_is_allowed(
    values: JudgedValues, edge: StoredEdge
) -> None:
    """Nothing is computed on this edge: an allowance of 0 makes any difference an infinite error."""
    (shown,) = elements_figure(values, edge, View(rows=1, columns=2, start=(0, 0, 0)), "error / allowed")[
        "data"
    ]
    wrong = {(int(row), int(column)) for row, column in np.argwhere(np.array(shown["text"]) == "inf")}
    both = read(values, edge)
    assert wrong == {(int(r), int(c)) for r, c in np.argwhere(both["oracle"][0] != both["candidate"][0])}
    assert {column for _, column in wrong} == {40}
    top = shown["zmax"]
    assert {(r, c) for r, row in enumerate(shown["z"]) for c, z in enumerate(row) if z == top} == wrong


def test_where_nothing_is_judged_no_error_is_shown() -> None:
    one = np.ones(1)
    assert np.isnan(error(one, 2 * one, np.inf * one))
    assert error(one, 2 * one, 4 * one) == 0.25
    assert error(one, one, 0 * one) == 0


@pytest.mark.parametrize(
    ("oracle", "candidate", "allowed", "expected"),
    [
        (1.0, np.nan, 0.5, np.inf),
        (np.nan, 1.0, 0.5, np.inf),
        (1.0, -np.inf, 0.5, np.inf),
        (np.inf, -np.inf, 0.5, np.inf),
        (np.inf, np.inf, 0.5, 0.0),
        (np.nan, np.nan, 0.0, 0.0),
        (1.0, 3.0, np.nan, 0.0),
        (1.0, np.nan, np.inf, np.nan),
    ],
)
def test_what_is_no_number_is_an_error_unless_both_sides_have_it(
    oracle: float, candidate: float, allowed: float, expected: float
) -> None:
    one = np.ones(1)
    np.testing.assert_array_equal(error(oracle * one, candidate * one, allowed * one), [expected])


def test_a_nan_of_the_candidate_stands_at_the_top_of_the_scale() -> None:
    reader = reading(np.array([1.0, 1.0]), np.array([1.0, np.nan]))
    (shown,) = elements_figure(reader, stored(2), View(rows=None, columns=0, start=(0,)), "error / allowed")[
        "data"
    ]
    assert shown["text"] == [["0", "inf"]]
    assert shown["z"] == [[shown["zmin"], shown["zmax"]]]


def test_the_file_is_read_as_it_lies_there(values: JudgedValues, kept: Path) -> None:
    with h5py.File(kept / "judged.h5") as file:
        assert len(file) == len(values.edges)
