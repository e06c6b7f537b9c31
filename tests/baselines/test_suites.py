"""Figures that suites tell become a baseline."""

import json
from pathlib import Path

from validator.baselines.figures import read_figures
from validator.testing.answers import Answer, Suite, Summary
from validator.testing.records import Ending, Figure
from validator.testing.settings import Settings


def test_figures_of_a_run_of_suites_are_read_with_errors_and_metadata(tmp_path: Path) -> None:
    answer = Answer(
        id="suites/test_alignment.py::test_perplexity",
        asked="?",
        ending=Ending.PASSED,
        figures=(Figure(name="perplexity", value=3.25, unit="nat", error=0.5),),
    )
    summary = Summary(
        settings=Settings(nproc=2), suites=(Suite(name="alignment", path="suites", answers=(answer,)),)
    )
    path = tmp_path / "run.json"
    path.write_text(json.dumps(summary.to_json()))
    figures, run = read_figures(path)
    figure = figures["alignment.test_perplexity.perplexity"]
    assert (figure.value, figure.unit, figure.error) == (3.25, "nat", 0.5)
    assert set(run) == {"hardware", "software", "parallelism", "inputs", "seeds", "determinism"}
    assert run["parallelism"] == {"world_size": 2}
