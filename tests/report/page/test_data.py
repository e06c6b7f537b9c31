import json
from dataclasses import replace

from tests.report.figures.test_positions import with_tokens
from validator.checks.findings import Outcome
from validator.report.page.data import page_data


def test_the_panel_of_an_edge_names_its_findings(divergent: Outcome) -> None:
    edges = page_data(divergent)["edges"]
    (found,) = edges[7]["findings"]
    assert (found["number"], found["signature"]) == (1, "a factor of 1.02 (residual 0.40 ulp after it)")
    assert found["evidence"] == {"factor": "1.02"}
    assert [edge["findings"] for n, edge in enumerate(edges) if n != 7] == [[]] * 11


def test_the_worst_edges_and_those_that_diverge_are_shown_in_full(divergent: Outcome) -> None:
    long = tuple(with_tokens(j, *(0.5,) * 128) for j in divergent.judgements) * 10
    edges = page_data(replace(divergent, judgements=long))["edges"]
    sizes = [len(edge["figures"]["along token"]["data"][0]["x"]) for edge in edges]
    assert set(sizes) == {64, 128}
    assert [sizes[n] for n, j in enumerate(long) if j.verdict != "aligned"] == [128] * 10
    assert 50 <= sizes.count(128) <= 60


def test_edges_without_a_profile_have_figures_of_nothing(divergent: Outcome) -> None:
    data = page_data(divergent)
    assert {json.dumps(edge["figures"]) for edge in data["edges"]} == {"{}"}
    assert (data["figures"]["positions"], data["figures"]["kl"]) == (None, None)
    assert data["shown"] == 7
