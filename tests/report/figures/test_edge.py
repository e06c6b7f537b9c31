import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from validator.align.traces import LogicalTensor, Part
from validator.checks.edge_values import values_of
from validator.checks.judge import Band, Bench
from validator.checks.profiles import Line, Profile
from validator.checks.profiling import profile_of
from validator.report.figures.edge import edge_figures


def profile(tokens: int = 40, channels: int = 300, *, nan: bool = False) -> Profile:
    """An edge whose channel 7 is off, held by two ranks."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(1, tokens, channels, generator=generator, dtype=torch.float64)
    cand = exact.to(torch.bfloat16)
    cand[..., 7] *= 1.5
    if nan:
        cand[0, 0, 0] = math.nan
    half = channels // 2
    parts = tuple(
        Part(rank=rank, box=((0, 1), (0, tokens), box))
        for rank, box in enumerate([(0, half), (half, channels)])
    )
    logical = LogicalTensor(data=cand, parts=parts, dims=("batch", "token", "channel"))
    values = values_of(exact=exact, cand=logical, band=Band(), judged=None, bench=Bench(elements=10**6))
    return profile_of(values)


def strict(figure: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(figure, allow_nan=False))
    return made


def test_there_is_a_figure_for_each_dim_the_ranks_the_errors_and_the_values() -> None:
    assert list(edge_figures(profile())) == ["along rank", "along channel", "along token", "ulp", "values"]


def test_the_line_along_a_dim_peaks_where_the_fault_is() -> None:
    made = profile()
    largest, rms = strict(edge_figures(made)["along channel"])["data"]
    assert (largest["name"], rms["name"]) == ("largest", "rms")
    # 300 channels are kept in 150 bins of two.
    assert largest["x"][largest["y"].index(max(largest["y"]))] == 6
    assert max(largest["y"]) == float(f"{made.largest:.3g}")


def test_a_bin_is_told_with_its_last_place_which_the_dim_has() -> None:
    largest, _ = strict(edge_figures(profile(channels=301))["along channel"])["data"]
    assert (largest["x"][:2], largest["text"][:2]) == ([0, 2], [1, 3])
    assert (largest["x"][-1], largest["text"][-1]) == (300, 300)
    assert "%{x} to %{text}" in str(largest["hovertemplate"])
    single, _ = strict(edge_figures(profile(channels=20))["along channel"])["data"]
    assert "text" not in single


def test_fewer_places_keep_the_largest_of_each() -> None:
    made = profile()
    largest, _ = strict(edge_figures(made, bins=10)["along channel"])["data"]
    assert len(largest["x"]) == 10
    assert largest["y"][0] == float(f"{made.largest:.3g}")
    assert max(largest["y"][1:]) <= 1.01


def line_of(starts: Sequence[int], largest: Sequence[float], counts: Sequence[int], **more: Any) -> Line:
    """Whose rms is half of the largest."""
    fields = {"axis": "rank", "dim": None, "size": len(starts), **more}
    rms = [value / 2 for value in largest]
    return Line(starts=starts, largest=largest, rms=rms, counts=counts, **fields)


def drawn(line: Line, bins: int) -> list[dict[str, Any]]:
    made = replace(profile(tokens=2, channels=8), lines=(line,))
    found: list[dict[str, Any]] = strict(edge_figures(made, bins=bins)[f"along {line.axis}"])["data"]
    return found


def test_many_ranks_share_a_point_which_names_the_first_and_the_last() -> None:
    ranks = range(0, 256, 2)
    largest, _ = drawn(line_of(ranks, [0.5] * 128, [1] * 128), bins=64)
    assert (largest["x"][:2], largest["text"][:2], largest["text"][-1]) == ([0, 4], [2, 6], 254)
    assert "rank %{x} to %{text}" in str(largest["hovertemplate"])
    single, _ = drawn(line_of(ranks, [0.5] * 128, [1] * 128), bins=128)
    assert "text" not in single


def test_bins_weigh_by_their_judged_elements_when_they_are_put_together() -> None:
    """The last bin of a dim may have fewer places, and padding leaves some without any."""
    line = line_of([0, 4, 8, 12], [4.0, 2.0, math.nan, 6.0], [12, 4, 0, 1], axis="channel", dim=2, size=13)
    largest, rms = drawn(line, bins=2)
    assert largest["y"] == [4.0, 6.0]
    assert rms["y"] == [float(f"{math.sqrt((12 * 4 + 4 * 1) / 16):.3g}"), 3.0]
    assert largest["text"] == [7, 12]


@pytest.mark.parametrize("error", [1e200, math.inf])
def test_errors_whose_square_is_no_number_are_put_together(error: float) -> None:
    largest, rms = drawn(line_of([0, 1, 2, 3], [error, 1.0, 1.0, 1.0], [1] * 4), bins=2)
    assert largest["y"][0] > largest["y"][1]
    assert rms["y"][0] > rms["y"][1]


def test_where_nothing_is_judged_bins_that_are_put_together_leave_a_gap() -> None:
    largest, rms = drawn(line_of([0, 1, 2, 3], [math.nan, math.nan, 1.0, 1.0], [0, 0, 1, 1]), bins=2)
    assert (largest["y"], rms["y"]) == ([None, 1.0], [None, 0.5])


def test_the_rms_has_its_own_place_where_it_is_smaller_than_all_the_largest() -> None:
    line = line_of([0, 1], [0.15, 0.3], [1, 1])
    made = strict(edge_figures(replace(profile(tokens=2, channels=8), lines=(line,)))["along rank"])
    axis = made["layout"]["yaxis"]
    assert [trace["y"] for trace in made["data"]] == [[0.15, 0.3], [0.075, 0.15]]
    assert axis["ticktext"][0] == "0"
    assert axis["tickvals"][0] <= 0.075 / 10


def test_the_histogram_has_every_element() -> None:
    made = profile()
    traces = strict(edge_figures(made)["ulp"])["data"]
    counts = [count for trace in traces for (count,) in trace["customdata"]]
    assert sum(counts) == sum(made.ulp_counts) == 40 * 300


def test_elements_outside_of_the_band_are_told_from_those_within() -> None:
    made = profile()
    density, within, outside = strict(edge_figures(made)["values"])["data"]
    assert density["type"] == "histogram2dcontour"
    assert len(within["x"]) + len(outside["x"]) == len(made.sample.error)
    assert len(outside["x"]) == sum(error > 1 for error in made.sample.error) > 16


def test_a_shorter_sample_keeps_the_worst_and_says_so() -> None:
    figure = strict(edge_figures(profile(), sampled=32)["values"])
    _, *shown = figure["data"]
    assert sum(len(trace["x"]) for trace in shown) == 32
    assert len(shown[-1]["x"]) >= 16
    assert figure["layout"]["title"]["text"] == "32 of 12000 elements, worst included"
    whole = edge_figures(profile(tokens=2, channels=8))["values"]
    assert whole["layout"]["title"]["text"] == "all 16 elements"


def test_values_that_are_no_numbers_leave_a_gap() -> None:
    figures = edge_figures(profile(nan=True))
    outside = strict(figures["values"])["data"][-1]
    assert None in outside["y"]
    assert "inf" in outside["text"]
    assert "∞" in strict(figures["along token"])["layout"]["yaxis"]["ticktext"]
