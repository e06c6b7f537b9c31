import math
from itertools import pairwise
from typing import Any

import pytest

from validator.report.figures.heat import (
    OVER,
    height_of,
    limit_scale,
    named_axis,
    shade,
    share_scale,
    share_shade,
)

SCALE: list[tuple[float, str]] = limit_scale("error")["colorscale"]


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def colour_of(value: float) -> str:
    """The nearest colour below on the scale, which says on which side of the limit a value is."""
    z = shade(value)
    assert z is not None
    place = (z + 2) / 4
    return [colour for at, colour in SCALE if at <= place][-1]


def test_the_colour_changes_at_the_limit_and_nowhere_else() -> None:
    blue, vermillion = (SCALE[2][1], SCALE[3][1])
    assert [colour_of(value) for value in (0.999, 1.0)] == [SCALE[1][1], blue]
    assert [colour_of(value) for value in (1 + 1e-12, OVER, 1.001, 9.0)] == [vermillion] * 4
    assert blue[1:3] < blue[5:7]
    assert vermillion[1:3] > vermillion[5:7]


def test_without_colours_the_scale_darkens_with_a_step_at_the_limit() -> None:
    steps = [contrast(a, b) for (_, a), (_, b) in pairwise(SCALE)]
    lights = [luminance(colour) for _, colour in SCALE]
    assert lights == sorted(lights, reverse=True)
    assert steps[2] > 1.5


@pytest.mark.parametrize("paper", ["#ffffff", "#14171a"], ids=["light", "dark"])
def test_no_colour_is_that_of_an_empty_cell(paper: str) -> None:
    assert min(contrast(colour, paper) for _, colour in SCALE) > 1.4


@pytest.mark.parametrize(
    ("value", "place"), [(math.nan, None), (0.0, -2), (1.0, 0), (10.0, 1), (1e9, 2), (math.inf, 2)]
)
def test_a_shade_is_a_power_of_ten_or_none(value: float, place: float | None) -> None:
    assert shade(value) == place


def test_a_share_has_a_colour_of_nothing_and_others_by_powers_of_ten() -> None:
    assert [share_shade(share) for share in (0.0, 100.0)] == [-2.0, 2.0]
    shades = [share_shade(share) for share in (0.0, 1e-9, 0.001, 0.01, 0.1, 1.0, 100.0)]
    assert shades == sorted(set(shades))
    scale = share_scale("elements outside, %")
    places = [max(0.0, (z - scale["zmin"]) / (scale["zmax"] - scale["zmin"])) for z in shades]
    under = [[colour for at, colour in scale["colorscale"] if at <= place][-1] for place in places]
    assert (under[0], under[1]) == (SCALE[0][1], SCALE[3][1])
    assert SCALE[0][1] not in under[1:]
    ticks = dict(zip(scale["colorbar"]["ticktext"], scale["colorbar"]["tickvals"], strict=True))
    assert ticks["1"] == share_shade(1.0)
    assert "limit" not in str(scale)


def test_the_names_of_many_rows_have_room() -> None:
    assert height_of(4) == {}
    assert height_of(18)["height"] < height_of(20)["height"] == height_of(500)["height"]


def shown(count: int, most: int) -> Any:
    axis = named_axis([f"<{n}>" for n in range(count)], most)
    assert axis["ticktext"] == [f"&lt;{n}&gt;" for n in axis["tickvals"]]
    return axis["tickvals"]


def test_of_many_names_as_many_are_written_as_can_be_read() -> None:
    assert shown(0, 20) == []
    assert shown(1, 20) == [0]
    assert shown(20, 20) == list(range(20))
    assert shown(21, 20) == [*range(0, 19, 2), 20]
    assert shown(61, 40)[-3:] == [56, 58, 60]
    assert shown(62, 40)[-3:] == [56, 58, 61]
    assert shown(1000, 20) == [*range(0, 950, 50), 999]


def test_a_written_name_is_short() -> None:
    (name,) = named_axis(["a" * 300], 20)["ticktext"]
    assert len(name) == 41
