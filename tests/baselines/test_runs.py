"""A run that is recorded, and later runs that are held to it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from validator.baselines.checking import check_run
from validator.baselines.recording import RunOptions, record_run
from validator.baselines.store import listed, read_baseline
from validator.checks.findings import Verdict
from validator.cli import app
from validator.errors import CaptureError, MismatchError, UsageError

PORT = """
import torch
from torch import nn

WIDTH = 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embed = nn.Embedding(50, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 50)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
        self.factor = 1.0

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.head(x + self.factor * self.down(torch.relu(self.up(x))))


def reference():
    return Model()


def candidate():
    model = Model().bfloat16()
    model.factor = FACTOR
    return model


def inputs():
    return {"input_ids": torch.arange(START, START + 12).reshape(1, 12)}
"""


def port(folder: Path, *, factor: str = "1.0", start: int = 0, name: str = "port.py") -> str:
    path = folder / name
    path.write_text(PORT.replace("FACTOR", factor).replace("START", str(start)))
    return str(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the baselines `alone` (the reference) and `both` (and the candidate) of a port."""
    folder = tmp_path_factory.mktemp("baselines")
    for name, side in (("alone", "reference"), ("both", "candidate")):
        made = record_run(name, port(folder), side, folder=folder / "kept")
        assert made.exit_code == 0
    return folder / "kept"


def test_a_healthy_run_is_aligned_with_the_reference_alone(recorded: Path, tmp_path: Path) -> None:
    found = check_run("alone", port(tmp_path), folder=recorded)
    assert found.verdict is Verdict.ALIGNED, found.summary
    assert found.differences == ()
    assert found.against_candidate is None


def test_a_healthy_run_has_the_recorded_bits(recorded: Path, tmp_path: Path) -> None:
    found = check_run("both", port(tmp_path), folder=recorded, demands_bits=True)
    assert found.verdict is Verdict.ALIGNED, found.summary
    assert found.summary == "bit for bit what both was"


def test_a_fault_is_named_at_its_module(recorded: Path, tmp_path: Path) -> None:
    found = check_run("alone", port(tmp_path, factor="1.5"), folder=recorded)
    assert found.verdict is Verdict.DIVERGENT
    assert found.comparison is not None
    assert found.comparison.first_divergence is not None
    first = found.comparison.first_divergence
    assert (first.module, first.into) == ("", "head")


def test_bits_within_rounding_are_told_and_are_a_divergence_only_where_bits_are_demanded(
    recorded: Path, tmp_path: Path
) -> None:
    nearly = port(tmp_path, factor="1.0 + 2**-7")
    bounded = check_run("both", nearly, folder=recorded)
    assert bounded.differing
    assert bounded.verdict is Verdict.ALIGNED, bounded.summary
    strict = check_run("both", nearly, folder=recorded, demands_bits=True)
    assert strict.verdict is Verdict.DIVERGENT
    assert strict.summary.startswith("not the bits of both: ")


def test_other_inputs_are_refused_with_both_checksums(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match=r"input input_ids with checksum \w+, and this run's has \w+"):
        check_run("alone", port(tmp_path, start=3), folder=recorded)


def test_a_missing_baseline_fails_and_those_that_there_are_are_listed(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is: alone, both"):
        check_run("other", port(tmp_path), folder=recorded)


def test_bits_of_a_baseline_without_a_candidate_are_refused(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds the reference alone"):
        check_run("alone", port(tmp_path), folder=recorded, demands_bits=True)


def test_a_divergent_candidate_is_no_baseline(tmp_path: Path) -> None:
    made = record_run("bad", port(tmp_path, factor="1.5"), "candidate", folder=tmp_path)
    assert made.exit_code == 1
    assert "a divergent run is no baseline" in made.summary
    assert listed(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["port.py"] or not list(tmp_path.glob(".bad*"))


def test_only_an_update_replaces_one_and_it_says_what_changed(tmp_path: Path) -> None:
    options = RunOptions(include=("down",))
    record_run("one", port(tmp_path), folder=tmp_path, options=options)
    before = read_baseline("one", tmp_path)
    with pytest.raises(UsageError, match="--update replaces it"):
        record_run("one", port(tmp_path), folder=tmp_path, options=options)
    assert read_baseline("one", tmp_path) == before
    changed = PORT.replace("manual_seed(1)", "manual_seed(2)")
    (tmp_path / "port.py").write_text(changed.replace("FACTOR", "1.0").replace("START", "0"))
    made = record_run("one", str(tmp_path / "port.py"), folder=tmp_path, options=options, update=True)
    assert made.changes is not None
    ((label, text),) = made.changes.rows()
    assert label == "reference"
    assert "changed, down" in text


def test_a_changed_file_is_found_by_its_hash(tmp_path: Path) -> None:
    record_run("one", port(tmp_path), folder=tmp_path)
    file = tmp_path / "one" / "reference.h5"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CaptureError, match="was changed or damaged since"):
        read_baseline("one", tmp_path)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a" * 101, "<b>"])
def test_names_that_could_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be the name of a baseline"):
        read_baseline(name, tmp_path)


def test_a_file_list_that_leads_out_of_the_baseline_is_refused(tmp_path: Path) -> None:
    record_run("one", port(tmp_path), folder=tmp_path)
    path = tmp_path / "one" / "baseline.json"
    document = json.loads(path.read_text())
    document["files"]["../../elsewhere"] = "0"
    path.write_text(json.dumps(document))
    with pytest.raises(CaptureError, match="a file outside of the baseline"):
        read_baseline("one", tmp_path)


def test_the_commands_record_check_list_and_show(tmp_path: Path) -> None:
    runner, target, folder = CliRunner(), port(tmp_path), str(tmp_path / "kept")

    def run(*words: str) -> tuple[int, str]:
        result = runner.invoke(app, ["baseline", *words, "--baselines", folder])
        return result.exit_code, result.output

    assert run("check", "one", target)[0] == 2
    code, output = run("record", "one", f"{target}:candidate")
    assert (code, "recorded one" in output) == (0, True)
    report = tmp_path / "report.json"
    assert run("check", "one", target, "--bitwise", "--json", str(report))[0] == 0
    document = json.loads(report.read_text())
    assert (document["verdict"], document["bits_differ_in"]) == ("aligned", [])
    assert run("check", "one", port(tmp_path, factor="1.5", name="bad.py"))[0] == 1
    assert "both sides of a run" in run("list")[1]
    assert "input_ids" in run("show", "one")[1]
    code, output = run("check", "one")
    assert (code, "give a TARGET" in output) == (2, True)
