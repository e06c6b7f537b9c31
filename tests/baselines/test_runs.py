"""A run that is recorded, and later runs that are held to it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from validator.baselines.by_edge import judge_by_edge
from validator.baselines.checking import check_run
from validator.baselines.conditions import Difference
from validator.baselines.recording import RunOptions, record_run
from validator.baselines.store import listed, read_baseline, write_baseline
from validator.capturing.reader import open_capture
from validator.checks.findings import Verdict
from validator.cli import app
from validator.errors import MismatchError, UsageError, ValidatorError
from validator.report.screen import plain_text
from validator.target import load_target

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
    assert found.bits is None


def test_a_healthy_run_has_the_recorded_bits(recorded: Path, tmp_path: Path) -> None:
    found = check_run("both", port(tmp_path), folder=recorded, demands_bits=True)
    assert found.verdict is Verdict.ALIGNED, found.summary
    assert found.summary == "bit for bit what both was"
    assert found.notes == ()


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
    hint = "the port has changed or gives other bits in each run"
    upgraded = Difference(item="software", name="torch", then="1", now="2")
    assert hint in plain_text(bounded, 200)
    assert hint not in plain_text(strict, 200)
    assert hint not in plain_text(replace(bounded, differences=(upgraded,)), 200)


def test_a_fault_below_the_noise_of_all_before_it_passes_with_its_size_told_and_is_found_by_edge(
    recorded: Path, tmp_path: Path
) -> None:
    small = port(tmp_path, factor="1.02")
    bounded = check_run("alone", small, folder=recorded)
    assert bounded.verdict is Verdict.ALIGNED, bounded.summary
    assert any("hides what changes its output by less than" in note for note in bounded.notes)
    by_edge = check_run("alone", small, folder=recorded, by_edge=True)
    assert by_edge.verdict is Verdict.DIVERGENT
    assert by_edge.first is not None
    assert (by_edge.first.module, by_edge.first.into) == ("", "head")
    assert by_edge.summary.startswith("not what alone was: ")
    assert not any("hides what" in note for note in by_edge.notes)
    assert by_edge.to_json()["edges"]["verdict"] == "divergent"


def test_a_healthy_run_is_aligned_by_edge(recorded: Path, tmp_path: Path) -> None:
    for name in ("alone", "both"):
        found = check_run(name, port(tmp_path), folder=recorded, by_edge=True)
        assert found.verdict is Verdict.ALIGNED, found.summary
        assert found.edges is not None
        assert found.edges.outcome.judgements
        assert "each judged by itself: 0 findings" in plain_text(found, 200)


def test_a_reference_with_other_weights_than_the_stored_one_judges_nothing(
    recorded: Path, tmp_path: Path
) -> None:
    other = Path(port(tmp_path))
    other.write_text(
        other.read_text()
        .replace("manual_seed(1)", "manual_seed(SEED)")
        .replace(
            "def reference():\n    return Model()",
            "def reference():\n    global SEED\n    SEED = 2\n    return Model()",
        )
        .replace("WIDTH = 32", "WIDTH = 32\nSEED = 1")
    )
    with pytest.raises(MismatchError, match=r"has another embed.weight than the one whose run the baseline"):
        check_run("alone", str(other), folder=recorded, by_edge=True)


OWN_RECIPE = """
from validator.numerics.recipes import Recipe

recipe = Recipe(name="mine", accumulate="float16")
"""


def test_a_recipe_of_the_targets_own_is_that_of_the_edges_and_is_missed_where_it_is_gone(
    tmp_path: Path,
) -> None:
    source = Path(port(tmp_path))
    source.write_text(source.read_text() + OWN_RECIPE)
    record_run("own", str(source), folder=tmp_path / "kept")
    found = check_run("own", str(source), folder=tmp_path / "kept", by_edge=True)
    assert found.verdict is Verdict.ALIGNED, found.summary
    assert found.edges is not None
    assert found.edges.outcome.judgements
    stored = open_capture(read_baseline("own", tmp_path / "kept").reference)
    assert stored.manifest.recipe == "mine"
    target = load_target(port(tmp_path, name="without.py"))
    with pytest.raises(MismatchError, match=r"a recipe 'mine' of the target's own, and .* declares none"):
        judge_by_edge(target=target, ref=stored, cand=stored, name="own")


@pytest.mark.parametrize(
    ("buffers", "later", "message"),
    [
        ("'scale': 1", "'scale': 2", "has another scale than the one whose run the baseline 'buffers'"),
        ("'scale': 1", "", r"the one whose run .* holds has scale, and the reference of .* has none"),
        ("", "'scale': 1", r"the reference of .* has scale, and the one whose run .* holds has none"),
    ],
)
def test_a_reference_with_other_buffers_than_the_stored_one_judges_nothing(
    buffers: str, later: str, message: str, tmp_path: Path
) -> None:
    def written(shown: str, name: str) -> str:
        source = Path(port(tmp_path, name=name))
        registered = (
            f"        for name, value in {{{shown}}}.items():\n"
            "            self.register_buffer(name, torch.tensor(float(value)))\n"
        )
        before = "        self.factor = 1.0\n"
        source.write_text(source.read_text().replace(before, before + registered))
        return str(source)

    first = written(buffers, "first.py")
    record_run("buffers", first, folder=tmp_path / "kept", options=RunOptions(include=("down", "")))
    stored = open_capture(read_baseline("buffers", tmp_path / "kept").reference)
    with pytest.raises(MismatchError, match=message):
        judge_by_edge(target=load_target(written(later, "later.py")), ref=stored, cand=stored, name="buffers")


def test_a_baseline_of_samples_is_not_judged_by_edge(tmp_path: Path) -> None:
    thin = RunOptions(level="sample")
    source = port(tmp_path)
    record_run("thin", source, folder=tmp_path / "kept", options=thin)
    with pytest.raises(MismatchError, match="the baseline 'thin' holds samples of tensors"):
        check_run("thin", source, folder=tmp_path / "kept", by_edge=True)


@pytest.mark.parametrize(
    ("options", "noise", "message"),
    [
        ({}, 4, "--noise 4 is too few stochastic runs to judge by: give 8 or more"),
        ({"recipe": "nonsense"}, 12, "--recipe 'nonsense' is not known"),
        ({"level": "nonsense"}, 12, "level 'nonsense' is not known"),
        ({"device": "nonsense"}, 12, "'nonsense' is no device that torch knows"),
        ({"device": "cuda", "nproc": 1 << 20}, 12, "needs 1048576 such devices"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_a_model_is_built(
    tmp_path: Path, options: dict[str, Any], noise: int, message: str
) -> None:
    source = Path(port(tmp_path))
    source.write_text(source.read_text().replace("return Model()", "raise RuntimeError('was built')"))
    source.write_text(source.read_text().replace("def candidate():", "def candidate(device='cpu'):"))
    source.write_text(source.read_text().replace("model = Model()", "raise RuntimeError('was built')"))
    with pytest.raises(ValidatorError, match=message):
        record_run(
            "new",
            str(source),
            "candidate",
            folder=tmp_path / "kept",
            options=RunOptions(**options),
            noise=noise,
        )
    assert not (tmp_path / "kept" / "new").exists()


def test_other_inputs_are_refused_with_both_checksums(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match=r"input input_ids with checksum \w+, and this run's has \w+"):
        check_run("alone", port(tmp_path, start=3), folder=recorded)


def test_a_missing_baseline_fails_and_those_that_there_are_are_listed(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is: alone, both"):
        check_run("other", port(tmp_path), folder=recorded)


def test_bits_of_a_baseline_without_a_candidate_are_refused(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds the reference alone"):
        check_run("alone", port(tmp_path), folder=recorded, demands_bits=True)


def test_noise_of_another_format_judges_nothing(recorded: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.py"
    half.write_text(Path(port(tmp_path)).read_text().replace(".bfloat16()", ".half()"))
    message = (
        "noise of the baseline 'alone' is that of a candidate in bfloat16, and this one computes in float16"
    )
    with pytest.raises(MismatchError, match=message):
        check_run("alone", str(half), folder=recorded)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (RunOptions(recipe="fused"), "recipe 'fused': the noise of the baseline 'alone' is that of 'eager'"),
        (RunOptions(include=("down",)), r"include \('down',\)"),
        (RunOptions(level="stats"), "level 'stats'"),
    ],
    ids=["recipe", "include", "level"],
)
def test_a_run_is_held_to_what_was_recorded_and_to_nothing_else(
    recorded: Path, tmp_path: Path, options: RunOptions, said: str
) -> None:
    with pytest.raises(MismatchError, match=said):
        check_run("alone", port(tmp_path), folder=recorded, options=options)


def test_a_stored_tensor_without_a_partner_leaves_it_open(recorded: Path, tmp_path: Path) -> None:
    without = port(tmp_path).replace("port.py", "without.py")
    lacking = "    model.head = Wrapped(model.head)\n    return model\n\n\nclass Wrapped(nn.Module):\n"
    lacking += "    def __init__(self, inner):\n        super().__init__()\n        self.inner = inner\n\n"
    lacking += "    def forward(self, x):\n        return self.inner(x)\n\n\ndef inputs"
    text = Path(port(tmp_path)).read_text().replace("    return model\n\n\ndef inputs", lacking)
    Path(without).write_text(text)
    found = check_run("alone", without, folder=recorded)
    assert found.verdict is Verdict.INCONCLUSIVE, found.summary
    assert "stored tensors have no partner in this run, such as the parameter head." in found.summary


def test_another_version_and_machine_are_told_and_judged_within_noise(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded / "both", tmp_path / "both")
    stored = read_baseline("both", tmp_path)
    hardware = [{**rank, "cpu": "another cpu"} for rank in stored.run["hardware"]]
    software = {**stored.run["software"], "torch": "2.11.0"}
    (tmp_path / "both" / "baseline.json").unlink()
    write_baseline(replace(stored, run={**stored.run, "hardware": hardware, "software": software}))
    found = check_run("both", port(tmp_path, factor="1.0 + 2**-7"), folder=tmp_path)
    assert found.verdict is Verdict.ALIGNED, found.summary
    told = [str(difference) for difference in found.differences]
    assert [text.partition(",")[0] for text in told] == ["hardware cpu another cpu", "software torch 2.11.0"]
    far = check_run("both", port(tmp_path, factor="1.5"), folder=tmp_path)
    assert far.verdict is Verdict.DIVERGENT


def test_a_run_on_more_ranks_is_judged_within_noise_and_bits_are_not_compared(
    recorded: Path, tmp_path: Path
) -> None:
    found = check_run("both", port(tmp_path), folder=recorded, options=RunOptions(nproc=2), demands_bits=True)
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.ALIGNED
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "bits were not compared: recorded on 1 ranks, run on 2" in found.summary
    assert "parallelism" in {difference.item for difference in found.differences}


def test_a_divergent_candidate_is_no_baseline(tmp_path: Path) -> None:
    made = record_run("bad", port(tmp_path, factor="1.5"), "candidate", folder=tmp_path)
    assert made.exit_code == 1
    assert "a divergent run is no baseline" in made.summary
    assert listed(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["port.py"]


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
    assert "changed, first parameter down.weight; " in text
    assert "relative L2" in text


def test_an_undecided_candidate_is_recorded_and_why_is_shown(tmp_path: Path) -> None:
    target = port(tmp_path)
    options = RunOptions(include=("down",), level="stats")
    made = record_run("one", target, "candidate", folder=tmp_path, options=options)
    assert made.exit_code == 0
    assert any(label == "undecided" and "only statistics" in text for label, text in made.rows())


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
    stored = Path(folder) / "one" / "candidate.h5"
    before = stored.read_bytes()
    for path in (stored, Path(target)):
        assert run("check", "one", target, "--json", str(path))[0] == 2
    for words in (["list"], ["show", "one"]):
        assert run(*words, "--json", str(stored))[0] == 2
    assert stored.read_bytes() == before
    assert run("check", "one", target, "--capture", str(stored), "--bitwise")[0] == 0
    assert run("check", "one", port(tmp_path, factor="1.5", name="bad.py"))[0] == 1
    assert "both sides of a run" in run("list")[1]
    assert "input_ids" in run("show", "one")[1]
    code, output = run("check", "one")
    assert (code, "give a TARGET" in output) == (2, True)
