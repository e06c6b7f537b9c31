import json
import math
from itertools import pairwise
from typing import Any

import pytest

from validator.checks.profiles import ULP_EDGES
from validator.report.figures.histogram import ulp_histogram

MIDDLE = len(ULP_EDGES) // 2 + 1
WIDTHS = [after - before for before, after in pairwise(ULP_EDGES)]


def drawn(counts: dict[int, int]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Bars, points and layout of so many elements in the bins, counted from that of no error."""
    figure = ulp_histogram([counts.get(n - MIDDLE, 0) for n in range(len(ULP_EDGES) + 2)])
    bars, points = json.loads(json.dumps(figure, allow_nan=False))["data"]
    return bars, points, figure["layout"]


def test_errors_that_are_evenly_spread_make_bars_of_one_height_however_wide_their_bins_are() -> None:
    half = len(WIDTHS) // 2
    spread = {n + 1: round(1000 * width) for n, width in enumerate(WIDTHS[half:])}
    bars, _, _ = drawn(spread | {-n: count for n, count in spread.items()})
    assert bars["y"] == [1000.0] * len(WIDTHS)
    assert bars["customdata"][half : half + 3] == [[125], [125], [125]]
    assert bars["customdata"][-1] == [768_000]


def test_what_has_no_width_is_a_point_that_tells_elements() -> None:
    bars, points, layout = drawn({0: 40, 1: 5, MIDDLE: 3})
    assert (points["hovertext"], points["y"]) == (["≤ -1024", "0", "≥ 1024"], [None, 40, 3])
    assert points["name"] == "elements at 0, or beyond ±1024"
    assert points["customdata"] == [[0], [40], [3]]
    assert layout["showlegend"]
    assert len(bars["x"]) == len(WIDTHS)
    _, points, _ = drawn({0: 40, 1: 5})
    assert (points["name"], points["y"]) == ("elements at 0", [40])


@pytest.mark.parametrize(("zeros", "gap"), [(0, 1.0), (7, 2.0)], ids=["none", "some"])
def test_no_error_has_a_place_where_there_is_such_an_element(zeros: int, gap: float) -> None:
    bars, points, layout = drawn({0: zeros, -1: 10, 1: 20})
    before, after = bars["x"]
    assert after - before == gap
    assert points["x"] == [0.0]
    assert points["y"] == [zeros or None]
    assert layout["showlegend"] == bool(zeros)


def test_as_much_of_one_side_is_shown_as_of_the_other() -> None:
    bars, _, layout = drawn({-1: 10, 3: 1})
    assert bars["hovertext"] == [
        *("-0.375 to -0.25", "-0.25 to -0.125", "-0.125 to 0"),
        *("0 to 0.125", "0.125 to 0.25", "0.25 to 0.375"),
    ]
    assert [count for (count,) in bars["customdata"]] == [0, 0, 10, 0, 0, 1]
    low, high = layout["xaxis"]["range"]
    assert low == -high


@pytest.mark.parametrize("reach", range(1, MIDDLE + 1))
@pytest.mark.parametrize("zeros", [0, 1])
def test_the_axis_names_where_bins_meet_and_has_room_for_the_names(reach: int, zeros: int) -> None:
    bars, _, layout = drawn({0: zeros, -reach: 1})
    axis = layout["xaxis"]
    named = dict(zip(axis["ticktext"], axis["tickvals"], strict=True))
    places = sorted(named.values())
    low, high = axis["range"]
    assert "0" in named
    assert len(named) >= 3
    assert min(after - before for before, after in pairwise(places)) >= (high - low) / 9
    assert named.keys() <= {f"{edge:g}" for edge in ULP_EDGES}
    ends = {
        place + side / 2: f"{edge:g}"
        for place, name in zip(bars["x"], bars["hovertext"], strict=True)
        for side, edge in zip((-1, 1), map(float, name.split(" to ")), strict=True)
    }
    assert all(ends[place] == name for name, place in named.items() if name != "0")


@pytest.mark.parametrize("count", [1, 10, 10**9])
def test_the_least_bar_has_a_height_and_the_greatest_fits(count: int) -> None:
    bars, points, layout = drawn({0: count, 2: count, MIDDLE - 1: 1})
    low, high = layout["yaxis"]["range"]
    heights = [math.log10(height) for height in (*bars["y"], *points["y"]) if height]
    assert low <= min(heights) - 0.25
    assert max(heights) <= high
    assert 2 <= len(layout["yaxis"]["tickvals"]) <= 9


def test_an_edge_without_elements_is_drawn() -> None:
    bars, points, _ = drawn({})
    assert (bars["y"], points["y"]) == ([0.0, 0.0], [None])
