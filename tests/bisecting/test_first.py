"""Which finding a search ends with: the first, and in code of a module's own between its children too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bisecting.deep_port import write_deep_net
from tests.reproducing import alone
from validator.api import capture_target
from validator.checks.findings import Finding
from validator.errors import UsageError
from validator.report.bisection import BisectionResult
from validator.target_bisect import bisect_target

LOUD = "model.layers[4].down.register_forward_hook(lambda module, args, out: out * 1.25)"

OWN_CODE = "model.layers[2].forward = types.MethodType({code}, model.layers[2])"
SILU = "lambda self, x: x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))"

OTHER_NAMES = """

class Tile(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.pre, self.wide, self.narrow = block.norm, block.up, block.down

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(self.pre(x))))


class Other(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.words, self.tiles = net.embed, nn.ModuleList(map(Tile, net.layers))
        self.post, self.out = net.norm, net.head

    def forward(self, input_ids):
        x = self.words(input_ids)
        for tile in self.tiles:
            x = tile(x)
        return self.out(self.post(x))


def candidate():
    model = Other(Net().to(torch.bfloat16))
    with torch.no_grad():
        spoil(model)
    return model


names = {
    "words": "embed",
    "tiles.*": "layers.*",
    "tiles.*.pre": "layers.*.norm",
    "tiles.*.wide": "layers.*.up",
    "tiles.*.narrow": "layers.*.down",
    "post": "norm",
    "out": "head",
}
"""


def first(result: BisectionResult) -> Finding:
    assert result.first_divergence is not None, str(result)
    return result.first_divergence


def steps(result: BisectionResult) -> list[tuple[str, tuple[str, ...]]]:
    return [(step.name, step.modules) for step in result.path]


def test_a_guilty_block_that_the_boundaries_point_at_is_not_taken_for_the_first(tmp_path: Path) -> None:
    quiet = "    model.layers[1].down.register_forward_hook(lambda module, args, out: out * 1.01)"
    result = bisect_target(str(write_deep_net(tmp_path, f"{LOUD}\n{quiet}", layers=6)))
    assert first(result).module == "layers.1.down"
    assert steps(result)[1:4] == [
        ("inside", ("layers.3", "layers.4")),
        ("functions", ("layers.0", "layers.1", "layers.2")),
        ("inside", ("layers.1",)),
    ]
    assert {finding.module for finding in result.findings} >= {"layers.1.down", "layers.4.down"}
    claim = result.claim
    assert claim is not None
    assert (claim.inside, claim.as_functions) == (0, 1)
    assert "1 block before it is aligned as one function" in " ".join(str(result).split())


def test_an_operator_of_a_blocks_own_code_is_named_and_reproduced(tmp_path: Path) -> None:
    port = write_deep_net(tmp_path, OWN_CODE.format(code=SILU), layers=4, changes="import types\n")
    result = bisect_target(str(port), repro=tmp_path / "made")
    found = first(result)
    assert (found.module, found.into) == ("layers.2", "layers.2.down")
    assert found.op in {"relu", "silu"}
    assert [name for name, _ in steps(result)][-1] == "operators", "the reproducer took no further run"
    assert any("reproduces the operator" in note for note in result.outcome.notes)
    assert shown(tmp_path / "made", tmp_path) == 1


def test_an_operator_around_the_blocks_is_named_without_capturing_their_insides(tmp_path: Path) -> None:
    spoil = "model.forward = types.MethodType(scaled, model)"
    changes = """
import types


def scaled(self, input_ids):
    x = self.embed(input_ids)
    for layer in self.layers:
        x = layer(x)
    return self.head(self.norm(x) * 1.05)
"""
    result = bisect_target(str(write_deep_net(tmp_path, spoil, layers=4, changes=changes)))
    found = first(result)
    assert (found.module, found.into, found.op) == ("", "head", "mul")
    assert result.path[-1].verdict == "divergent: mul"
    assert [step.captured for step in result.path if step.runs] == [8, 8]


def test_modules_with_other_names_are_captured_by_those(tmp_path: Path) -> None:
    spoil = "model.tiles[2].pre.eps = 0.05"
    port = write_deep_net(tmp_path, spoil, layers=4, changes=OTHER_NAMES)
    result = bisect_target(str(port), repro=tmp_path / "made")
    found = first(result)
    assert (found.module, found.candidate_module, found.op) == ("layers.2.norm", "tiles.2.pre", "add")
    assert steps(result)[-1] == ("operators", ("layers.2.norm",))
    assert shown(tmp_path / "made", tmp_path) == 1
    only = bisect_target(str(port), module="layers.2.norm")
    assert first(only).candidate_module == "tiles.2.pre"
    assert [step.captured for step in only.path if step.name == "inside"] == [1]


def test_a_reproducer_can_be_had_from_a_stored_capture_and_of_a_wrong_weight(tmp_path: Path) -> None:
    port = write_deep_net(tmp_path, "model.layers[1].down.weight.mul_(1.05)", layers=3)
    captured = capture_target(str(port), "candidate", tmp_path / "run")
    result = bisect_target(str(port), capture=captured, repro=tmp_path / "made")
    assert first(result).module == "layers.1.down"
    assert shown(tmp_path / "made", tmp_path) == 1
    healthy = bisect_target(str(write_deep_net(tmp_path, layers=2)), repro=tmp_path / "none")
    assert "no reproducer: nothing was found" in healthy.outcome.notes
    assert not (tmp_path / "none").exists()


def test_what_runs_a_candidate_cant_be_given_with_a_capture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--nproc, --timeout can't be used with --capture"):
        bisect_target(str(write_deep_net(tmp_path)), capture=tmp_path / "run", nproc=2, timeout_s=5.0)


def test_a_reproducer_that_cant_be_written_is_an_error_before_the_candidate_runs(tmp_path: Path) -> None:
    port = write_deep_net(tmp_path)
    with pytest.raises(UsageError, match=r"--repro .*port.py can't be written: Not a directory"):
        bisect_target(str(port), repro=port)
    assert not (tmp_path / "built").exists()


def shown(folder: Path, tmp_path: Path) -> int:
    """Run a reproducer by itself, and return its exit code."""
    out, script = tmp_path / "said.json", folder / "reproduce.py"
    subprocess.run(
        [sys.executable, "-I", str(alone.__file__), str(out), str(script)], check=True, timeout=300
    )
    code: int = json.loads(out.read_text())[str(script)]["code"]
    return code
