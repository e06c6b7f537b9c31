import math
from dataclasses import replace

from tests.report.figures.test_positions import with_tokens
from validator.checks.findings import Outcome, Verdict
from validator.checks.profiles import OutputProfile
from validator.digits import number
from validator.report.page.data import page_data
from validator.report.page.tables import ValueTable, value_tables


def tables_of(outcome: Outcome) -> dict[str, ValueTable]:
    return value_tables(outcome, page_data(outcome)["figures"])


def texts(table: ValueTable) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_every_judged_edge_has_a_row_that_leads_to_it(divergent: Outcome) -> None:
    unchecked = replace(divergent.judgements[0], verdict=Verdict.UNCHECKED)
    table = tables_of(replace(divergent, judgements=(unchecked, *divergent.judgements[1:])))["edges"]
    assert [row[0].edge for row in table.rows] == list(range(1, 12))
    assert texts(table)[6] == ["model.layers.2.mlp.down_proj (function)", "divergent", "0.71"]


def test_a_cell_of_a_layer_is_its_worst_edge(divergent: Outcome) -> None:
    worse = replace(
        divergent.judgements[4], evidence=replace(divergent.judgements[4].evidence, max_over_band=40.0)
    )
    edges = (*divergent.judgements[:4], worse, *divergent.judgements[5:])
    table = tables_of(replace(divergent, judgements=edges))["layers"]
    assert table.columns[:2] == ("layer", "largest error / band")
    assert [row[:2] for row in texts(table)] == [["0", "0.71"], ["1", "40.0"], ["2", "0.71"], ["3", "0.71"]]
    assert table.rows[1][1].edge == 4


def test_a_layer_without_a_metric_has_an_open_cell_and_one_of_which_nothing_was_judged_says_so(
    divergent: Outcome,
) -> None:
    kept = with_tokens(divergent.judgements[1], 0.5)
    assert kept.profile is not None
    undecided = with_tokens(divergent.judgements[4], 0.5)
    assert undecided.profile is not None
    undecided = replace(undecided, profile=replace(undecided.profile, rms=math.nan))
    table = tables_of(replace(divergent, judgements=(kept, undecided, *divergent.judgements[6:])))["layers"]
    rms = [row[table.columns.index("rms error / band")] for row in texts(table)]
    assert rms == [number(kept.profile.rms), "nothing judged", "", ""]


def test_positions_have_a_row_for_each_token_and_a_column_for_each_layer(divergent: Outcome) -> None:
    first = with_tokens(divergent.judgements[1], 0.5, 3.0)
    other = with_tokens(divergent.judgements[4], 0.25, 0.75)
    table = tables_of(replace(divergent, judgements=(first, other)))["positions"]
    assert table.columns == ("token", "layer 0", "layer 1")
    assert texts(table) == [["0", "0.50", "0.25"], ["1", "3.0", "0.75"]]


def test_the_output_has_a_row_for_each_token_and_a_column_for_each_sequence(aligned: Outcome) -> None:
    output = OutputProfile(places=((0, 0), (0, 1), (1, 1)), kl=(1e-4, 0.0, 0.5), worst=())
    table = tables_of(replace(aligned, output=output))["kl"]
    assert table.columns == ("token", "sequence 0, nats", "sequence 1, nats")
    assert texts(table) == [["0", "1.0e-4", ""], ["1", "0", "0.50"]]


def test_what_shows_nothing_has_no_table(inconclusive: Outcome) -> None:
    assert set(tables_of(inconclusive)) == {"edges", "layers"}
    assert tables_of(replace(inconclusive, judgements=())) == {}
    unchecked = tuple(replace(j, verdict=Verdict.UNCHECKED) for j in inconclusive.judgements)
    assert tables_of(replace(inconclusive, judgements=unchecked)) == {}
