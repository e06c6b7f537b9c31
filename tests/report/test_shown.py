"""What all results write alike."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from validator.checks.findings import Outcome
from validator.escapes import printable
from validator.report.result import Result


def test_a_csv_is_the_frame(divergent: Outcome, tmp_path: Path) -> None:
    result = Result(divergent)
    result.write_csv(tmp_path / "edges.csv")
    assert (tmp_path / "edges.csv").read_text() == result.to_frame().to_csv(index=False)


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_a_name_that_a_spreadsheet_would_take_for_a_formula_is_text(
    first: str, divergent: Outcome, tmp_path: Path
) -> None:
    name = f"{first}HYPERLINK(A1)"
    result = Result(with_module(divergent, name))
    result.write_csv(tmp_path / "edges.csv")
    assert set(pd.read_csv(tmp_path / "edges.csv").module) == {f"'{name}"}
    assert set(result.to_frame().module) == {name}


@pytest.mark.parametrize("name", ["\r=1+1", "\t=1+1", "a\r=1+1", "a\n=1+1", "a\r\n@x\u202e"])
def test_no_control_character_begins_a_row_or_hides_a_formula(
    name: str, divergent: Outcome, tmp_path: Path
) -> None:
    Result(with_module(divergent, name)).write_csv(tmp_path / "edges.csv")
    lines = (tmp_path / "edges.csv").read_bytes().splitlines()
    assert len(lines) == 13
    assert set(pd.read_csv(tmp_path / "edges.csv").module) == {printable(name)}


def test_negative_numbers_are_numbers(divergent: Outcome, tmp_path: Path) -> None:
    first = divergent.judgements[0]
    gained = replace(first, evidence=replace(first.evidence, gain=-5e-4))
    Result(replace(divergent, judgements=(gained,))).write_csv(tmp_path / "edges.csv")
    assert pd.read_csv(tmp_path / "edges.csv").gain.tolist() == [-5e-4]


def with_module(outcome: Outcome, name: str) -> Outcome:
    return replace(
        outcome, judgements=tuple(replace(judgement, module=name) for judgement in outcome.judgements)
    )
