import json
import math
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.conftest import finding, judgement
from validator.checks.findings import Arm, Check, Evidence, Verdict
from validator.checks.profiles import Unit
from validator.report.figures.drawing import ErrorAxis, edge_label, label, over_band, rounded, writer

DOWN = judgement("model.layers.2.mlp.down_proj", Check.FUNCTION, 7)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("<a href='javascript:x'>", "&lt;a href='javascript:x'&gt;"),
        ("a&lt;b", "a&amp;lt;b"),
        ("line\nbreak\x1b[31m", "line\\nbreak\\x1b[31m"),
        ("turned\u202eback", "turned\\u202eback"),
        ("🦙 %{x}", "🦙 %{x}"),
    ],
)
def test_a_label_is_shown_as_it_is_by_plotly(name: str, shown: str) -> None:
    assert label(name) == shown


def test_a_long_label_keeps_both_ends() -> None:
    shown = label(f"start{'x' * 300}end")
    assert len(shown) == 161
    assert shown.startswith("start")
    assert shown.endswith("end")


def test_an_edge_is_named_by_module_place_check_call_and_rank() -> None:
    assert edge_label(DOWN) == "model.layers.2.mlp.down_proj (function)"
    into = replace(DOWN, into="model.layers.2.mlp.down_proj.x", path="input", check=Check.WIRING, call=1)
    assert edge_label(into) == "model.layers.2.mlp.down_proj, into x [input] (wiring, call 1)"
    assert edge_label(replace(finding(), check=Check.PARTIAL)).endswith("(partial, rank 1)")


@pytest.mark.parametrize(
    ("verdict", "arm", "measured", "shown"),
    [
        (Verdict.ALIGNED, None, 0.7, 0.7),
        (Verdict.ALIGNED, None, None, 0.0),
        (Verdict.DIVERGENT, Arm.MAX, 4.4, 4.4),
        (Verdict.DIVERGENT, Arm.GAIN, 0.9, 0.9),
        (Verdict.DIVERGENT, Arm.CLASS, 0.9, math.inf),
        (Verdict.DIVERGENT, Arm.EXACT, None, math.inf),
        (Verdict.DIVERGENT, Arm.MAX, None, math.inf),
        (Verdict.UNCHECKED, None, None, math.nan),
    ],
)
def test_what_has_no_size_stands_at_an_end(
    verdict: Verdict, arm: Arm | None, measured: float | None, shown: float
) -> None:
    said = replace(DOWN, verdict=verdict, arm=arm, evidence=Evidence(max_over_band=measured))
    assert over_band(said) == pytest.approx(shown, abs=0, rel=0, nan_ok=True)


def test_nothing_and_no_limit_stand_at_the_ends_of_the_axis() -> None:
    values = [0.0, 0.02, 1.0, 40.0, math.inf, math.nan]
    axis = ErrorAxis(values, "error")
    layout = axis.layout()
    low, high = layout["tickvals"][0], layout["tickvals"][-1]
    assert (layout["ticktext"][0], layout["ticktext"][-1]) == ("0", "∞")
    assert low < 0.02 < 40.0 < high
    assert axis.place(values) == [low, 0.02, 1.0, 40.0, high, None]
    assert axis.hover([0.02, 1.0], "token %{x}") == "token %{x}: %{y}"
    assert axis.hover([0.0, math.inf], "token %{x}") == ["token %{x}: 0", "token %{x}: inf"]


def test_beside_the_limit_the_words_say_on_which_side_an_error_is() -> None:
    axis = ErrorAxis([0.9999, 1.0001], "error")
    assert axis.place([0.9999, 1.0001]) == [1.0, 1.0]
    assert axis.hover([0.9999, 1.0001], "at %{x}") == ["at %{x}: 0.9999", "at %{x}: 1.0001"]
    assert axis.hover([0.9999], "at %{x}", writer(Unit.ULP)) == ["at %{x}: 1.0"]


@pytest.mark.parametrize("value", [sys.float_info.max, 3.4e307, 5e-324])
def test_the_axis_of_any_error_can_be_drawn(value: float) -> None:
    for axis in (ErrorAxis([value], "error"), ErrorAxis([value], "KL", limit=value)):
        (place,) = axis.place([value])
        ticks = axis.layout()["tickvals"]
        assert place is not None
        assert 0 < ticks[0] <= place <= ticks[-1] < math.inf
    assert math.isfinite(10 ** ErrorAxis([value], "error").layout()["range"][1])
    assert None not in rounded([value])
    json.dumps(rounded([value, -value]), allow_nan=False)


def test_an_axis_of_nothing_but_zeros_is_an_axis() -> None:
    axis = ErrorAxis([0.0, 0.0], "error")
    assert axis.place([0.0]) == [axis.layout()["tickvals"][0]]


def test_an_axis_has_the_place_of_its_limit_and_numbers_on_both_sides_of_it() -> None:
    axis = ErrorAxis([1e-10, 3e-11, 0.0], "KL", limit=2e-10)
    assert axis.place([1e-10, 3e-11, 0.0]) == [1e-10, 3e-11, 1e-12]
    assert axis.layout()["tickvals"] == [1e-12, 1e-11, 1e-10, 1e-9, 1e-8]
    assert axis.layout()["ticktext"] == ["0", "1e-11", "1e-10", "1e-09", "∞"]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([0.0], ["0", "0.1", "1", "10", "∞"]),
        ([0.0, 0.1, 0.9], ["0", "0.1", "1", "10", "∞"]),
        ([0.099, 1.0], ["0", "0.01", "0.1", "1", "10", "∞"]),
        ([3.0, 30.0], ["0", "0.1", "1", "10", "100", "∞"]),
        ([1e7, 1e-3], ["< 0.1", "0.1", "1", "10", "100", "1000", "10000", "100000", "1e+06", "1e+07", "∞"]),
        ([2e7, 0.0], ["0", "0.1", "1", "10", "100", "1000", "10000", "100000", "1e+06", "1e+07", "> 1e+07"]),
    ],
    ids=str,
)
def test_an_axis_tells_that_it_is_logarithmic_on_both_sides_of_its_limit(
    values: list[float], names: list[str]
) -> None:
    layout = ErrorAxis(values, "error").layout()
    assert layout["ticktext"] == names
    decades = [after / before for before, after in pairwise(layout["tickvals"])]
    assert decades == pytest.approx([10.0] * (len(names) - 1))


@given(st.lists(st.floats(0, 1e12), min_size=1))
def test_no_error_stands_where_nothing_or_no_limit_is_told(values: list[float]) -> None:
    axis = ErrorAxis(values, "error")
    layout = axis.layout()
    nothing, *_, no_limit = layout["tickvals"]
    for value, place in zip(values, axis.place(values), strict=True):
        assert place is not None
        if value == 0:
            assert place == nothing
        elif place == nothing:
            assert layout["ticktext"][0].startswith("< ")
        elif place == no_limit:
            assert layout["ticktext"][-1].startswith("> ")
        else:
            assert nothing * 9.99 < place < no_limit / 9.99
            assert place == pytest.approx(value, rel=6e-3, abs=0)


def test_what_is_too_small_for_the_axis_stands_at_its_lower_end() -> None:
    axis = ErrorAxis([1e-30, 1.0], "error")
    low = axis.layout()["tickvals"][0]
    assert axis.place([1e-30, 1.0]) == [low, 1.0]
    assert axis.layout()["ticktext"][0] == f"< {10 * low:g}"
    assert axis.hover([1e-30], "at %{x}") == ["at %{x}: 1.0e-30"]
