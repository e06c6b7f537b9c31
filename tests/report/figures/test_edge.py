import json
import math
from typing import Any

import torch

from validator.align.traces import LogicalTensor, Part
from validator.checks.edge_values import values_of
from validator.checks.judge import Band, Bench
from validator.checks.profiles import Profile
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


def test_the_histogram_shows_as_much_of_one_side_as_of_the_other() -> None:
    made = profile()
    (bars,) = strict(edge_figures(made)["ulp"])["data"]
    assert sum(bars["y"]) == sum(made.ulp_counts) == 40 * 300
    middle = bars["x"].index("0")
    assert middle == len(bars["x"]) // 2
    assert bars["x"][middle - 1 : middle + 2] == ["-0.125 to 0", "0", "0 to 0.125"]


def test_elements_outside_of_the_band_are_told_from_those_within() -> None:
    made = profile()
    density, within, outside = strict(edge_figures(made)["values"])["data"]
    assert density["type"] == "histogram2dcontour"
    assert len(within["x"]) + len(outside["x"]) == len(made.sample.error)
    assert len(outside["x"]) == sum(error > 1 for error in made.sample.error) > 16


def test_a_shorter_sample_keeps_the_worst() -> None:
    _, *shown = strict(edge_figures(profile(), sampled=32)["values"])["data"]
    assert sum(len(trace["x"]) for trace in shown) == 32
    assert len(shown[-1]["x"]) >= 16


def test_values_that_are_no_numbers_leave_a_gap() -> None:
    figures = edge_figures(profile(nan=True))
    outside = strict(figures["values"])["data"][-1]
    assert None in outside["y"]
    assert "inf" in outside["text"]
    assert "∞" in strict(figures["along token"])["layout"]["yaxis"]["ticktext"]
