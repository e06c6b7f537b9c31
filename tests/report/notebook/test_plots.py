"""Plots by name: what they are of, and what a name or an edge that there is not is answered with."""

import pytest

from validator.checks.findings import Outcome
from validator.errors import UsageError
from validator.report.result import Result


@pytest.mark.parametrize("name", ["edges", "layers", "layers: largest error / band", "positions"])
def test_the_run_has_its_plots(faulty: Result, name: str) -> None:
    assert len(faulty.figure(name).data) >= 1


def test_the_plot_of_edges_has_every_judged_edge(faulty: Result) -> None:
    shown = {row for trace in faulty.figure("edges").data for row in trace.customdata}
    assert shown == set(range(len(faulty.outcome.judgements)))


@pytest.mark.parametrize("name", ["along token", "along channel", "ulp", "values"])
def test_an_edge_has_its_plots_and_the_default_is_the_first_divergence(faulty: Result, name: str) -> None:
    assert faulty.first_divergence is not None
    by_finding = faulty.figure(name, faulty.first_divergence)
    assert faulty.figure(name) == by_finding


def test_a_row_of_the_frame_and_its_judgement_are_the_same_edge(faulty: Result) -> None:
    frame = faulty.to_frame()
    row = int(frame.index[(frame.check == "function") & (frame.module == "up")][0])
    assert faulty.figure("along channel", row) == faulty.figure(
        "along channel", faulty.outcome.judgements[row]
    )
    assert faulty.figure("along channel", row) != faulty.figure("along channel")


def test_the_planted_channel_stands_out(faulty: Result) -> None:
    figure = faulty.figure("along channel")
    largest = next(trace for trace in figure.data if trace.name == "largest")
    assert largest.x[max(range(len(largest.y)), key=lambda n: largest.y[n])] == 40


def test_without_a_divergence_the_edge_nearest_to_its_band_is_shown(aligned: Outcome) -> None:
    with pytest.raises(
        UsageError, match=r"model\.layers\.0\.mlp\.down_proj\.weight \(parameter\) has no profile"
    ):
        Result(aligned).figure("ulp")


def test_an_unknown_plot_is_answered_with_all_there_are(faulty: Result) -> None:
    with pytest.raises(UsageError, match=r"no plot 'along expert'; of the run .* 'edges', .* 'along token'"):
        faulty.figure("along expert")


def test_what_needs_profiles_says_so(divergent: Outcome) -> None:
    with pytest.raises(UsageError, match=r"nothing to draw 'positions' of: check\(\.\.\., profiles=True\)"):
        Result(divergent).figure("positions")


@pytest.mark.parametrize("row", [-1, 10_000])
def test_an_edge_that_there_is_not_is_an_error(faulty: Result, row: int) -> None:
    with pytest.raises(UsageError, match=f"no edge {row}: this result has"):
        faulty.figure("ulp", row)


def test_a_finding_of_another_result_is_an_error(faulty: Result, divergent: Outcome) -> None:
    with pytest.raises(UsageError, match="is no finding of this result"):
        faulty.figure("ulp", divergent.findings[0])
