import json
from dataclasses import replace
from typing import Any

from tests.report.conftest import judgement
from validator.checks.findings import Check, Outcome, Verdict
from validator.report.facts import first_judgement
from validator.report.figures.execution import edges_figure, worst_judgement


def traces(figure: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert figure is not None
    json.dumps(figure, allow_nan=False)  # a page holds strict JSON
    found: list[dict[str, Any]] = figure["data"]
    return found


def test_every_judged_edge_is_a_point_that_knows_its_judgement(divergent: Outcome) -> None:
    unjudged = judgement("model.layers.9", Check.FUNCTION, 99, Verdict.UNCHECKED)
    points = traces(edges_figure(replace(divergent, judgements=(*divergent.judgements, unjudged))))
    assert sorted(n for trace in points for n in trace["customdata"]) == list(range(12))
    (bad,) = (trace for trace in points if trace["name"].startswith("divergent"))
    assert bad["customdata"] == [7]
    assert {trace["marker"]["symbol"] for trace in points} == {"circle", "x"}


def test_the_first_divergence_is_marked(divergent: Outcome, aligned: Outcome) -> None:
    assert first_judgement(divergent) == 7
    (note,) = edges_figure(divergent)["layout"]["annotations"]
    assert (note["x"], note["text"]) == (7, "first divergence: model.layers.2.mlp.down_proj (function)")
    assert first_judgement(aligned) is None
    assert "annotations" not in edges_figure(aligned)["layout"]


def test_of_the_terms_of_a_sum_that_of_the_finding_is_marked(divergent: Outcome) -> None:
    first = replace(divergent.findings[0], check=Check.PARTIAL, rank=2)
    terms = [replace(divergent.judgements[7], check=Check.PARTIAL, rank=rank) for rank in range(4)]
    outcome = replace(divergent, findings=(first,), judgements=(*divergent.judgements[:4], *terms))
    assert first_judgement(outcome) == 6


def test_names_are_text(divergent: Outcome) -> None:
    judgements = tuple(replace(j, module="<img src=x>.<b>") for j in divergent.judgements)
    figure = json.dumps(edges_figure(replace(divergent, judgements=judgements)))
    assert "<img" not in figure
    assert "<b>" not in figure


def test_of_an_aligned_run_the_edge_nearest_to_its_band_is_looked_at_first(aligned: Outcome) -> None:
    judgements = list(aligned.judgements)
    judgements[4] = replace(judgements[4], evidence=replace(judgements[4].evidence, max_over_band=0.9))
    assert worst_judgement(replace(aligned, judgements=tuple(judgements))) == 4
    assert worst_judgement(replace(aligned, judgements=())) is None


def test_a_divergence_comes_before_what_is_near_its_band(divergent: Outcome) -> None:
    assert worst_judgement(divergent) == 7
