"""Figures that suites tell become a baseline."""

import json
from pathlib import Path

import pytest

from validator.baselines.figures import read_figures
from validator.errors import CaptureError
from validator.testing.answers import Answer, Suite, Summary
from validator.testing.records import Ending, Figure
from validator.testing.settings import Settings


def test_figures_of_a_run_of_suites_are_read_with_errors_and_metadata(tmp_path: Path) -> None:
    answer = Answer(
        id="suites/test_alignment.py::test_perplexity",
        asked="?",
        ending=Ending.PASSED,
        compared=1,
        figures=(Figure(name="perplexity", value=3.25, unit="nat", error=0.5),),
    )
    summary = Summary(
        settings=Settings(nproc=2), suites=(Suite(name="alignment", path="suites", answers=(answer,)),)
    )
    path = tmp_path / "run.json"
    path.write_text(json.dumps(summary.to_json()))
    found, run = read_figures(path), read_figures(path).run
    figure = found.figures["alignment.test_perplexity.perplexity"]
    assert (figure.value, figure.unit, figure.error) == (3.25, "nat", 0.5)
    assert set(run) == {"hardware", "software", "parallelism", "inputs", "seeds", "determinism", "settings"}
    assert (run["parallelism"], run["settings"]["nproc"]) == ({"world_size": 2}, 2)
    assert found.verdict == "passed"


def answer(nodeid: str, *names: str) -> Answer:
    figures = tuple(Figure(name=name, value=1) for name in names)
    return Answer(id=nodeid, asked="?", ending=Ending.PASSED, figures=figures)


def written(path: Path, *suites: Suite) -> Path:
    path.write_text(json.dumps(Summary(settings=Settings(), suites=suites).to_json()))
    return path


def test_a_suite_has_one_name_however_its_path_was_written(tmp_path: Path) -> None:
    test = "test_alignment.py::TestTexts::test_kl[a::b]"
    by_name = Suite(name="alignment", path="x", answers=(answer(f"../lib/suites/{test}", "kl"),))
    by_path = Suite(name="./suites/test_alignment.py", path="y", answers=(answer(f"suites/{test}", "kl"),))
    for suite in (by_name, by_path):
        (name,) = read_figures(written(tmp_path / "run.json", suite)).figures
        assert name == "alignment.TestTexts::test_kl[a::b].kl"


def test_two_figures_of_one_name_are_refused(tmp_path: Path) -> None:
    suite = Suite(name="a", path="x", answers=(answer("test_a.py::test_b", "steps", "steps"),))
    with pytest.raises(CaptureError, match=r"two figures called 'a\.test_b\.steps'"):
        read_figures(written(tmp_path / "run.json", suite))
