import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from validator.checks.findings import Outcome
from validator.report.result import Result
from validator.report.text import to_text


@pytest.mark.parametrize(
    ("name", "code"), [("aligned", 0), ("divergent", 1), ("undeclared", 1), ("inconclusive", 3)]
)
def test_the_exit_code_is_that_of_the_verdict(name: str, code: int, request: pytest.FixtureRequest) -> None:
    assert Result(request.getfixturevalue(name)).exit_code == code


def test_the_first_divergence_skips_undeclared_precision(divergent: Outcome, undeclared: Outcome) -> None:
    result = Result(replace(divergent, findings=(*undeclared.findings, *divergent.findings)))
    assert result.first_divergence is divergent.findings[0]
    assert Result(undeclared).first_divergence is None


def test_the_frame_has_one_row_an_edge_with_its_evidence(divergent: Outcome) -> None:
    frame = Result(divergent).to_frame()
    assert len(frame) == len(divergent.judgements) == 12
    bad = frame[frame["verdict"] == "divergent"].iloc[0]
    assert (bad["module"], bad["check"], bad["rank"]) == ("model.layers.2.mlp.down_proj", "function", 1)
    assert bad["max_over_band"] == 0.71
    assert frame["rank"].isna().sum() == 11
    assert frame["elements"].dtype == pd.Int64Dtype()
    assert frame.loc[frame["check"] == "function", "smallest_gain"].tolist() == [2.5e-4] * 4
    assert frame.loc[frame["check"] == "parameter", "smallest_gain"].isna().all()


def test_the_frame_of_a_run_without_edges_is_empty_and_has_its_columns(inconclusive: Outcome) -> None:
    frame = Result(replace(inconclusive, judgements=())).to_frame()
    assert len(frame) == 0
    assert {"module", "verdict", "max_over_band"} <= set(frame.columns)


def test_the_written_json_is_the_document(divergent: Outcome, tmp_path: Path) -> None:
    result = Result(divergent)
    result.write_json(tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text()) == result.to_json()


def test_it_prints_as_the_terminal_text(divergent: Outcome) -> None:
    assert str(Result(divergent)) == to_text(divergent)


def test_html_escapes_names(divergent: Outcome) -> None:
    hostile = replace(divergent.findings[0], module="<script>alert(1)</script>")
    html = Result(replace(divergent, findings=(hostile,)))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
