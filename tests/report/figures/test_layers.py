import json
import math
from dataclasses import replace
from typing import Any

import pytest

from validator.checks.findings import Arm, Evidence, Outcome
from validator.report.figures.drawing import label
from validator.report.figures.heat import OVER, shade, share_shade
from validator.report.figures.layers import (
    LAYER_METRICS,
    NO_LAYER,
    layer_words,
    layers_figure,
    layers_of,
    place_of,
)


def rows_of(figure: dict[str, Any]) -> list[str]:
    """The names beside a heat map that is short enough to have them all."""
    axis = figure["layout"]["yaxis"]
    assert axis["tickvals"] == list(range(len(axis["ticktext"])))
    names: list[str] = axis["ticktext"]
    return names


def traces(figure: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert figure is not None
    json.dumps(figure, allow_nan=False)  # a page holds strict JSON
    found: list[dict[str, Any]] = figure["data"]
    return found


@pytest.mark.parametrize(
    ("module", "layer", "inside"),
    [
        ("model.layers.12.mlp.experts.3", "model.layers.12", "mlp.experts.3"),
        ("model.layers.12", "model.layers.12", ""),
        ("0", "0", ""),
        ("lm_head", NO_LAYER, "lm_head"),
        ("", NO_LAYER, ""),
    ],
)
def test_the_first_number_of_a_path_ends_its_layer(module: str, layer: str, inside: str) -> None:
    place = place_of(module)
    assert (place.layer, place.inside) == (layer, inside)


def test_layers_of_one_stack_are_named_by_their_number() -> None:
    assert layers_of(["", "m.layers.0.x", "m.layers.1", "head"]) == {
        "m.layers.0": "0",
        "m.layers.1": "1",
        "no layer": "no layer",
    }
    assert list(layers_of(["vision.0", "text.0"]).values()) == ["vision.0", "text.0"]


def test_a_cell_is_the_worst_edge_of_its_layer(divergent: Outcome) -> None:
    judgements = list(divergent.judgements)
    judgements[7] = replace(judgements[7], arm=Arm.MAX, evidence=Evidence(max_over_band=40.0))
    figure = layers_figure(replace(divergent, judgements=tuple(judgements)))
    (heat,) = traces(figure)
    row = rows_of(figure).index("largest error / band")
    assert (heat["x"], heat["y"]) == ([0, 1, 2, 3], [0, 1])
    assert figure["layout"]["xaxis"]["ticktext"] == ["0", "1", "2", "3"]
    assert heat["text"][row][2] == (
        "layer 2, largest error / band<br>40.0<br>model.layers.2.mlp.down_proj (function)"
    )
    assert heat["customdata"][row][2] == 7
    assert heat["z"][row] == pytest.approx(
        [math.log10(0.71)] * 2 + [math.log10(40)] + [math.log10(0.71)], abs=5e-3
    )


@pytest.mark.parametrize(
    ("arm", "z", "colour"),
    [
        (None, 3.0, 0.5),
        (None, 60.0, 1.0),
        (Arm.MAX, 60.0, 1.0),
        (Arm.GAIN, 3.0, OVER),
        (Arm.GAIN, 60.0, 10.0),
    ],
)
def test_a_gain_is_past_its_limit_where_it_decided(
    arm: Arm | None, z: float, colour: float, aligned: Outcome
) -> None:
    """Below its floor a gain is healthy at any z; a channel's may be clear where the edge's is not."""
    said = replace(aligned.judgements[1], arm=arm, evidence=Evidence(max_over_band=0.5, z=z))
    (heat,) = traces(layers_figure(replace(aligned, judgements=(said,)), "|z| of the gain / 6"))
    assert heat["z"] == [[shade(colour)]]
    assert f"<br>{z / 6:.2g}" in heat["text"][0][0]


@pytest.mark.parametrize(
    ("outside", "elements", "words"),
    [(0, 1000, "0"), (1, 100_000, "1.0e-3"), (10, 1000, "1.0"), (1000, 1000, "100")],
)
def test_a_share_of_elements_outside_has_its_own_scale(
    outside: int, elements: int, words: str, aligned: Outcome
) -> None:
    said = replace(aligned.judgements[1], evidence=Evidence(outside=outside, elements=elements))
    of = replace(aligned, judgements=(said,))
    (heat,) = traces(layers_figure(of, "elements outside, %"))
    assert heat["z"] == [[share_shade(100 * outside / elements)]]
    assert (heat["z"][0][0] > 0) == (outside > 0)
    assert f"<br>{words}<br>" in heat["text"][0][0]
    (every,) = traces(layers_figure(of))
    assert every["z"][-1] == heat["z"][0]


@pytest.mark.parametrize("metric", [None, *LAYER_METRICS])
def test_1_is_called_the_limit_where_it_is(metric: str | None, divergent: Outcome) -> None:
    (heat,) = traces(layers_figure(divergent, metric))
    assert ("the limit" in str(heat["colorbar"])) == (metric == "largest error / band")


def test_modules_of_no_layer_stand_below_those_of_layers(aligned: Outcome) -> None:
    modules = ("embed", "layers.0.q", "norm", "layers.0", "", "layers.1.q", "layers.1.act")
    said = tuple(replace(aligned.judgements[0], module=module) for module in modules)
    figure = layers_figure(replace(aligned, judgements=said), "largest error / band")
    assert rows_of(figure) == ["q", "(the layer itself)", "act", "embed", "norm", "(the model itself)"]


def test_no_layer_is_not_called_one(aligned: Outcome) -> None:
    said = tuple(replace(aligned.judgements[0], module=module) for module in ("layers.0.q", "lm_head"))
    figure = layers_figure(replace(aligned, judgements=said), "largest error / band")
    assert figure["layout"]["xaxis"]["ticktext"] == ["0", "no layer"]
    (heat,) = traces(figure)
    told = [heat["text"][row][column].partition("<br>")[0] for row, column in ((0, 0), (1, 1))]
    assert told == ["layer 0, q", "no layer, lm_head"]
    assert [layer_words("0"), layer_words(NO_LAYER)] == ["layer 0", "no layer"]


def test_one_metric_is_shown_module_by_module(divergent: Outcome) -> None:
    figure = layers_figure(divergent, "largest error / band")
    (heat,) = traces(figure)
    assert rows_of(figure) == ["mlp.down_proj.weight", "mlp.down_proj", "mlp"]
    assert len(heat["z"]) == 3


def test_modules_and_layers_whose_labels_are_alike_are_told_apart(aligned: Outcome) -> None:
    names = [f"{'a' * 130}{middle}{'b' * 130}" for middle in "xy"]
    assert label(names[0]) == label(names[1])
    said = aligned.judgements[0]
    rows = tuple(replace(said, module=f"layers.0.{name}") for name in names)
    (heat,) = traces(layers_figure(replace(aligned, judgements=rows), "largest error / band"))
    assert heat["customdata"] == [[0], [1]]
    assert len(set(heat["y"])) == 2
    columns = tuple(replace(said, module=f"{name}.0") for name in names)
    (heat,) = traces(layers_figure(replace(aligned, judgements=columns), "largest error / band"))
    assert heat["customdata"] == [[0, 1]]
    assert len(set(heat["x"])) == 2


def test_where_nothing_is_judged_the_place_is_told_all_the_same(aligned: Outcome) -> None:
    rows = (
        replace(aligned.judgements[0], module="h.0.up"),
        replace(aligned.judgements[0], module="h.1.down"),
    )
    (heat,) = traces(layers_figure(replace(aligned, judgements=rows), "largest error / band"))
    assert (heat["z"][1][0], heat["text"][1][0]) == (None, "layer 0, down")


def test_a_run_of_no_edges_has_an_empty_heat_map(aligned: Outcome) -> None:
    (heat,) = traces(layers_figure(replace(aligned, judgements=())))
    assert (heat["x"], heat["y"], heat["z"]) == ([], [], [])


@pytest.mark.parametrize("metric", [None, *LAYER_METRICS])
def test_names_are_text(divergent: Outcome, metric: str | None) -> None:
    judgements = tuple(replace(j, module="<img src=x>.layers.0.<b>") for j in divergent.judgements)
    figure = json.dumps(layers_figure(replace(divergent, judgements=judgements), metric))
    assert "<img" not in figure
    assert "<b>" not in figure
