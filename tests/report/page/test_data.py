import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.report.figures.test_positions import with_tokens
from validator.checks.findings import Outcome, Verdict
from validator.checks.profiles import Window
from validator.report.page.data import page_data


def test_the_panel_of_an_edge_names_its_findings(divergent: Outcome) -> None:
    edges = page_data(divergent)["edges"]
    (found,) = edges[7]["findings"]
    assert (found["number"], found["signature"]) == (1, "a factor of 1.02 (residual 0.40 ulp after it)")
    assert found["evidence"] == {"factor": "1.02"}
    assert [edge["findings"] for n, edge in enumerate(edges) if n != 7] == [[]] * 11


def shown_window(outcome: Outcome, *values: tuple[float, float, float], in_full: bool = True) -> Any:
    """The window of an edge whose rows are an oracle's, a candidate's and an allowed value each."""
    oracle, candidate, allowed = (tuple((value,) for value in column) for column in zip(*values, strict=True))
    first, *others = (with_tokens(j, 0.5) for j in outcome.judgements)
    assert first.profile is not None
    window = Window(start=(4, 7), worst=(4, 7), oracle=oracle, candidate=candidate, allowed=allowed)
    first = replace(first, profile=replace(first.profile, window=window))
    worse = () if in_full else tuple(with_tokens(replace(j, verdict=Verdict.DIVERGENT), 2.0) for j in others)
    return page_data(replace(outcome, judgements=(first, *worse * 10)))["edges"][0]["window"]


@pytest.mark.parametrize(
    ("oracle", "candidate", "allowed", "is_outside"),
    [
        (1234.56749, 1234.5691, 6e-5, True),  # alike in six digits
        (1.234564999, 1.234565001, 1e-6, False),  # apart in six digits
        (1.0, math.nan, 0.5, True),
        (math.nan, 1.0, 0.5, True),
        (1.0, math.inf, 0.5, True),
        (math.nan, math.nan, 0.0, False),
        (math.inf, math.inf, 0.0, False),
        (1.0, 2.0, 1.0, False),
        (1.0, 2.0, math.nan, False),  # rounding decides it altogether
        (1.0, math.nan, math.inf, False),  # padding
    ],
)
def test_what_is_outside_is_told_from_the_values_and_not_from_their_texts(
    divergent: Outcome, oracle: float, candidate: float, allowed: float, is_outside: bool
) -> None:
    assert shown_window(divergent, (oracle, candidate, allowed))["outside"] == [[is_outside]]


def test_float32_values_that_differ_are_told_apart(divergent: Outcome) -> None:
    window = shown_window(divergent, (1234.56749, 1234.5691, 6e-5))
    assert (window["oracle"], window["candidate"]) == ([["1234.56749"]], [["1234.5691"]])


def test_an_edge_that_is_not_shown_in_full_has_the_row_of_the_worst_alone(divergent: Outcome) -> None:
    window = shown_window(divergent, (1.0, 2.0, 0.5), (1.0, 1.0, 0.5), in_full=False)
    assert (window["candidate"], window["outside"], window["start"]) == ([["2"]], [[True]], [4, 7])


def test_however_many_edges_diverge_few_are_shown_in_full(divergent: Outcome) -> None:
    said = with_tokens(replace(divergent.judgements[7], verdict=Verdict.DIVERGENT), *(2.0,) * 128)
    edges = page_data(replace(divergent, judgements=(said,) * 1000))["edges"]
    sizes = [len(edge["figures"]["along token"]["data"][0]["x"]) for edge in edges]
    assert 50 <= sizes.count(128) <= 51


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
