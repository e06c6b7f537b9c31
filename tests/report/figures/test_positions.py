import json
import math
from dataclasses import replace
from typing import Any

import pytest

from validator.checks.findings import Judgement, Outcome
from validator.checks.profiles import Line, OutputProfile, Position, Profile, Sample, Unit
from validator.report.figures.positions import kl_figure, positions_figure, token_errors
from validator.report.page.rendering import to_html

OUTPUT = OutputProfile(
    places=((0, 0), (0, 1), (1, 0), (1, 1)),
    kl=(1e-4, math.inf, 0.0, 2e-3),
    worst=(Position(place=(0, 1), kl=math.inf, reference=((5, 0.9),), candidate=()),),
)


def traces(figure: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert figure is not None
    json.dumps(figure, allow_nan=False)  # a page holds strict JSON
    found: list[dict[str, Any]] = figure["data"]
    return found


def with_tokens(said: Judgement, *largest: float) -> Judgement:
    line = Line(
        axis="token",
        dim=1,
        size=len(largest),
        starts=tuple(range(len(largest))),
        largest=largest,
        rms=largest,
        counts=[0 if math.isnan(value) else 1 for value in largest],
    )
    none = Sample(oracle=(), candidate=(), error=())
    profile = Profile(
        unit=Unit.BAND, largest=max(largest), rms=0.3, lines=(line,), ulp_counts=(), sample=none, window=None
    )
    return replace(said, profile=profile)


def test_positions_show_the_worst_edge_of_a_layer_at_each_token(aligned: Outcome) -> None:
    said = list(aligned.judgements)
    said[1] = with_tokens(said[1], 0.1, 0.5, 0.2)
    said[2] = with_tokens(said[2], 0.3, 0.1, math.inf)
    said[4] = with_tokens(said[4], 0.1, math.nan, 0.1)
    figure = positions_figure(replace(aligned, judgements=tuple(said)))
    (heat,) = traces(figure)
    assert figure is not None
    assert figure["layout"]["yaxis"]["ticktext"] == ["0", "1"]
    assert (heat["x"], heat["y"]) == ([0, 1, 2], [0, 1])
    assert heat["text"] == [
        ["layer 0, token 0: 0.30", "layer 0, token 1: 0.50", "layer 0, token 2: inf"],
        ["layer 1, token 0: 0.10", "layer 1, token 1: nothing judged", "layer 1, token 2: 0.10"],
    ]
    assert heat["z"][1][1] is None


def test_edges_of_other_tokens_are_named_where_they_are_left_out(aligned: Outcome) -> None:
    said = list(aligned.judgements)
    said[1] = with_tokens(said[1], 0.1, 0.5, 0.2)
    said[2] = with_tokens(said[2], 0.3, 0.1, 0.2)
    said[4] = with_tokens(said[4], 9.0)
    profile = with_tokens(said[5], 9.0).profile
    assert profile is not None
    said[5] = replace(said[5], profile=replace(profile, lines=()))
    said[7] = replace(said[5], module="exact", profile=replace(profile, unit=Unit.ULP))
    some = replace(aligned, judgements=tuple(said))
    found, figure = token_errors(some), positions_figure(some)
    assert found is not None
    assert figure is not None
    assert (found.size, found.layers, found.errors) == (3, ("0",), ((0.3, 0.5, 0.2),))
    names = ("model.layers.1.mlp.down_proj (function)", "model.layers.1.mlp (wiring)")
    assert found.left_out == names
    assert figure["layout"]["title"]["text"] == ("without 2 edges of another number of tokens, or of none")
    assert f"Left out are edges without a dim of 3 tokens: {', '.join(names)}." in to_html(some)


def test_where_all_edges_are_told_none_is_called_left_out(aligned: Outcome) -> None:
    whole = replace(aligned, judgements=(with_tokens(aligned.judgements[1], 0.1, 0.5),))
    found, figure = token_errors(whole), positions_figure(whole)
    assert found is not None
    assert figure is not None
    assert (found.left_out, "title" in figure["layout"]) == ((), False)
    assert "Left out" not in to_html(whole)


def test_layers_whose_labels_are_alike_are_told_apart(aligned: Outcome) -> None:
    said = tuple(
        with_tokens(replace(aligned.judgements[1], module=f"{'a' * 130}{n}{'b' * 130}.0"), error)
        for n, error in enumerate((0.25, 0.5))
    )
    (heat,) = traces(positions_figure(replace(aligned, judgements=said)))
    assert len(set(heat["y"])) == 2
    assert [row[0].rpartition(" ")[2] for row in heat["text"]] == ["0.25", "0.50"]


def test_tokens_that_share_a_bin_are_told_as_such(aligned: Outcome) -> None:
    said = with_tokens(aligned.judgements[1], 0.1, 0.5)
    assert said.profile is not None
    line = replace(said.profile.lines[0], size=7, starts=(0, 4))
    said = replace(said, profile=replace(said.profile, lines=(line,)))
    (heat,) = traces(positions_figure(replace(aligned, judgements=(said,))))
    assert heat["text"] == [["layer 0, token 0 to 3: 0.10", "layer 0, token 4 to 6: 0.50"]]


def test_without_profiles_positions_are_not_known(aligned: Outcome) -> None:
    assert positions_figure(aligned) is None


def test_the_output_is_a_line_a_sequence_with_the_noise_beside(aligned: Outcome) -> None:
    figure = kl_figure(replace(aligned, output=OUTPUT))
    first, second = traces(figure)
    assert (first["name"], first["x"]) == ("sequence 0", [0, 1])
    assert first["text"] == ["token 0: 1.0e-4", "token 1: inf"]
    assert (second["x"], second["text"]) == ([0, 1], ["token 0: 0", "token 1: 2.0e-3"])
    assert figure is not None
    assert figure["layout"]["shapes"][0]["y0"] == 6.02e-4
    assert figure["layout"]["title"]["text"] == "dashed: noise alone, 6.0e-4 nats"
    assert "annotations" not in figure["layout"]  # which would lie over the lines
    assert kl_figure(aligned) is None


@pytest.mark.parametrize("floor", [2e-10, None, 0.0])
def test_the_kl_of_a_wide_format_is_drawn_at_its_own_height(floor: float | None, aligned: Outcome) -> None:
    narrow = replace(OUTPUT, kl=(1e-10, 0.0, 4e-11, 9e-11))
    figure = kl_figure(replace(aligned, output=narrow, distribution={"kl_noise_floor": floor}))
    first, second = traces(figure)
    assert (first["y"][0], second["y"]) == (1e-10, [4e-11, 9e-11])
    assert first["y"][1] < 4e-11
    assert figure is not None
    assert [line["y0"] for line in figure["layout"].get("shapes", [])] == ([floor] if floor else [])
    assert ("title" in figure["layout"]) == bool(floor)


def test_of_a_long_run_the_worst_of_neighbouring_positions_is_shown(aligned: Outcome) -> None:
    size = 5000
    long = OutputProfile(
        places=tuple((0, token) for token in range(size)), kl=(*(1e-5,) * (size - 1), 0.5), worst=()
    )
    figure = kl_figure(replace(aligned, output=long))
    (trace,) = traces(figure)
    assert len(trace["x"]) == 1000
    assert (trace["x"][-1], trace["y"][-1]) == (size - 1, 0.5)
    assert trace["text"][0] == "token 0 to 4, the worst: 1.0e-5"
    assert figure is not None
    assert figure["layout"]["xaxis"]["title"]["text"] == "tokens, the worst of each 5"


def test_every_position_of_several_short_sequences_is_shown(aligned: Outcome) -> None:
    places = tuple((sequence, token) for sequence in range(16) for token in range(128))
    output = OutputProfile(places=places, kl=(1e-3, 1e-6) * (len(places) // 2), worst=())
    figure = kl_figure(replace(aligned, output=output))
    assert [line["y"] for line in traces(figure)] == [[1e-3, 1e-6] * 64] * 16
    assert figure is not None
    assert figure["layout"]["xaxis"]["title"]["text"] == "token"
