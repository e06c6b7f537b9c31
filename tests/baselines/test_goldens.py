"""The goldens that ship hold the examples, name a planted fault, and tell nothing of who recorded them."""

import platform
from pathlib import Path

import pytest

from validator.baselines.checking import check_run
from validator.baselines.recording import RunOptions
from validator.baselines.store import listed, read_baseline, size_of
from validator.checks.findings import Verdict
from validator.content import content_path

GOLDENS = content_path("baselines", "goldens")
FAULTS = {"tiny-dense": "rope-sign:layer=1", "tiny-moe": "rope-sign:layer=1"}
MEGABYTE = 1_000_000


def example(name: str) -> str:
    return str(content_path("examples", f"{name.replace('-', '_')}.py"))


@pytest.mark.parametrize("name", list(FAULTS))
def test_an_example_is_what_its_golden_was(name: str) -> None:
    found = check_run(name, example(name), folder=GOLDENS)
    assert found.verdict is Verdict.ALIGNED, found.summary
    assert found.comparison is not None
    outputs = {pair.module for pair in found.comparison.comparison.pairs if pair.side == "output"}
    assert outputs == {"", "model.norm"}
    # How little was looked at is told.
    assert any(note.startswith("sampled: ") for note in found.notes)


# Behind a router, whose near ties go either way in healthy runs, nothing is called divergent by noise alone.
VERDICTS = {"tiny-dense": Verdict.DIVERGENT, "tiny-moe": Verdict.INCONCLUSIVE}


@pytest.mark.parametrize(("name", "fault"), FAULTS.items(), ids=list(FAULTS))
def test_a_planted_fault_is_not_what_the_golden_was(name: str, fault: str) -> None:
    found = check_run(name, example(name), folder=GOLDENS, options=RunOptions(plant=fault))
    assert found.verdict is VERDICTS[name], found.summary
    assert "beyond their noise" in found.summary or found.exit_code == 1


def test_goldens_are_small_and_tell_nothing_of_the_machine_that_recorded_them() -> None:
    assert [path.name for path in sorted(GOLDENS.iterdir())] == list(FAULTS)
    for golden in listed(GOLDENS):
        assert not isinstance(golden, Exception), golden
        assert size_of(golden) < 0.25 * MEGABYTE
        assert {rank["host"] for rank in golden.run["hardware"]} == {"builder"}
        for file in (path for path in golden.folder.iterdir() if path.is_file()):
            data = file.read_bytes()
            for word in (str(Path(__file__).resolve().parents[2]), str(Path.home()), "/tmp/"):
                assert word.encode() not in data
            if platform.node() != "builder":
                assert b'"host": "' + platform.node().encode() not in data


def test_all_baselines_together_stay_small() -> None:
    folder = content_path("baselines", "README.md").parent
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 6 * MEGABYTE


def test_a_golden_says_how_it_was_recorded() -> None:
    golden = read_baseline("tiny-dense", GOLDENS)
    assert golden.source == "examples/tiny_dense.py"
    assert golden.command.startswith("validator baseline record tiny-dense examples/tiny_dense.py ")
