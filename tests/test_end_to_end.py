"""The commands do their whole job: targets, ranks, captures, oracle, verdict, text, JSON and exit code."""

import errno
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from tests.small_port import write_port
from validator import cli, open_capture
from validator.api import check_target
from validator.checks import values_writer
from validator.checks.judged_values import JudgedValues
from validator.report.json_report import schema

FAULTY = """
def candidate():
    model = Net().to(torch.bfloat16)
    up = model.up.forward
    model.up.forward = lambda x: 1.01 * up(x)
    return model
"""
# Column- then row-parallel, with DTensors; rank 1 multiplies the row-parallel module's partial sum by FACTOR.
SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def candidate():
    model = Net().to(torch.bfloat16)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "head": RowwiseParallel()})
    if FACTOR != 1 and torch.distributed.get_rank() == 1:
        head = model.head.forward
        model.head.forward = lambda x: FACTOR * head(x)
    return model
"""
# Without hooks it computes something else: what is seen is not what runs.
CHANGED_BY_HOOKS = """
class Watched(Net):
    def forward(self, input_ids):
        logits = super().forward(input_ids)
        return logits if self.up._forward_hooks else logits + 0.5


def candidate():
    return Watched().to(torch.bfloat16)
"""
# Each operator of the norm rounds to bfloat16, where a fused kernel rounds once.
NORM_IN_STORAGE_FORMAT = """
class Norm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = Norm()

    def forward(self, input_ids):
        return self.head(self.norm(self.up(self.embed(input_ids))))


def reference():
    return Normed()


def candidate():
    return Normed().to(torch.bfloat16)
"""
# The whole model lies in another, as DistributedDataParallel holds it.
WRAPPED = f"""{FAULTY.replace("candidate", "bare")}

class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, input_ids):
        return self.module(input_ids)


def candidate():
    return Wrapper(bare())
"""
FLOAT32 = """
def candidate():
    return Net()
"""


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def checked(*args: str | Path, code: int) -> dict[str, Any]:
    """Run `validator check ARGS`, hold it to its exit code and to the schema, and return its JSON."""
    done = run("check", *args, "--json", "-")
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == code, document.get("findings", document)
    jsonschema.validate(document, schema())
    return document


def unwrapped(text: str) -> str:
    return " ".join(text.replace(" \\\n", " ").split())


def printed_next(text: str) -> str | None:
    """Return the command that a report says to go on with, put together again from its lines."""
    found = re.search(r"^  next +((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return None if found is None else unwrapped(found[1])


def test_a_healthy_port_is_aligned(tmp_path: Path) -> None:
    document = checked(write_port(tmp_path), code=0)
    assert (document["verdict"], document["first_divergence"], document["findings"]) == ("aligned", None, [])
    assert document["checked"]["function"] == 3
    assert document["checked"]["unchecked"] == []
    assert document["run"]["candidate"]["proof"]["status"] == "identical"


def test_a_faulty_port_is_divergent_at_the_module_that_is_wrong(tmp_path: Path) -> None:
    document = checked(write_port(tmp_path, FAULTY), code=1)
    first = document["first_divergence"]
    assert document["verdict"] == "divergent"
    assert (first["module"], first["check"], first["into"], first["rank"]) == ("up", "function", None, None)
    assert document["findings"] == [first]  # what follows from it is not found again


def test_the_command_itself_prints_the_finding_and_exits_with_1(tmp_path: Path) -> None:
    write_port(tmp_path, FAULTY)
    command = [sys.executable, "-m", "validator", "check", "port.py", "--json", "result.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("divergent: first at up\n")
    assert "  next        validator check port.py --include 'up*' --keep run\n" in done.stdout
    document = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema())
    assert document["first_divergence"]["module"] == "up"


def test_a_capture_made_elsewhere_is_judged_as_in_one_go_and_needs_the_reference_alone(
    tmp_path: Path,
) -> None:
    target = write_port(tmp_path, f"FACTOR = 1.01\n{SHARDED}")
    at_once = checked(target, "--nproc", "2", code=1)
    captured = run("capture", f"{target}:candidate", "-o", tmp_path / "cand", "--nproc", "2")
    assert (captured.exit_code, captured.stdout) == (0, f"{tmp_path / 'cand'}\n")
    reference_alone = write_port(tmp_path, "del candidate\n", name="reference_alone.py")
    later = checked(reference_alone, "--capture", tmp_path / "cand", code=1)
    assert (at_once["first_divergence"]["module"], at_once["first_divergence"]["rank"]) == ("head", 1)
    assert at_once["first_divergence"]["check"] == "partial"
    for key in ("verdict", "findings", "checked", "distribution", "notes"):
        assert later[key] == at_once[key], key
    assert later["run"]["candidate"]["parallelism"] == at_once["run"]["candidate"]["parallelism"]


def test_a_healthy_sharded_port_is_aligned(tmp_path: Path) -> None:
    document = checked(write_port(tmp_path, f"FACTOR = 1\n{SHARDED}"), "--nproc", "2", code=0)
    assert document["checked"]["partial"] == 2
    assert document["checked"]["replica"] > 0


def test_a_checkpoint_folder_is_a_target(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "checkpoint")
    options = ["--dtype", "bfloat16", "--nproc", "2", "--tp", "2"]
    document = checked(tmp_path / "checkpoint", *options, code=0)
    assert document["run"]["candidate"]["parallelism"]["world_size"] == 2
    assert document["checked"]["partial"] > 0
    assert document["distribution"]["positions"] == 2 * 32


def test_the_reference_can_be_captured_and_judged_too(tmp_path: Path) -> None:
    target = write_port(tmp_path)
    assert run("capture", f"{target}:reference", "-o", tmp_path / "ref.h5").exit_code == 0
    document = checked(target, "--capture", tmp_path / "ref.h5", code=0)
    assert document["run"]["candidate"]["source"] == str(tmp_path / "ref.h5")


def test_a_run_of_one_rank_fits_in_one_file(tmp_path: Path) -> None:
    target = write_port(tmp_path, FAULTY)
    assert run("capture", target, "-o", tmp_path / "cand.h5").exit_code == 0
    assert (tmp_path / "cand.h5").is_file()
    assert checked(target, "--capture", tmp_path / "cand.h5", code=1)["first_divergence"]["module"] == "up"


def test_a_narrowed_check_that_finds_nothing_is_inconclusive_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    document = checked(write_port(tmp_path), "--include", "up", code=3)
    assert document["verdict"] == "inconclusive"
    assert document["why_inconclusive"] == [
        "3 modules, the model itself among them, were left out by --include up: no check judged them"
    ]
    assert (document["checked"]["unchecked"], document["notes"]) == ([], [])
    assert document["run"]["candidate"]["modules"] == {"include": ["up"]}


def test_a_narrowed_check_still_finds_the_fault(tmp_path: Path) -> None:
    target = write_port(tmp_path, FAULTY)
    assert checked(target, "--include", "up", code=1)["first_divergence"]["module"] == "up"


def test_the_commands_that_are_printed_lead_on_to_a_reproducer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_port(tmp_path, FAULTY)
    command, seen = "validator check port.py --recipe eager", []
    while command is not None:
        seen.append(command)
        done = run(*shlex.split(command)[1:])
        assert done.exit_code == 1, done.stdout
        assert done.stdout.startswith("divergent: first at up\n")
        command = printed_next(done.stdout)
    assert seen[1:] == [
        "validator check port.py --recipe eager --include 'up*' --keep run",
        "validator check port.py --recipe eager --include 'up*' --repro repro",
    ]
    assert "repro/reproduce.py reproduces the code of up: up" in unwrapped(done.stdout)
    shown = subprocess.run(
        [sys.executable, "repro/reproduce.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "WRONG" in shown.stdout


def test_the_next_command_looks_for_the_module_by_the_candidates_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_port(tmp_path, WRAPPED)
    command = printed_next(run("check", "port.py").stdout)
    assert command is not None
    assert "--include 'module.up*'" in command
    assert run(*shlex.split(command)[1:-2]).exit_code == 1


def test_an_excluded_module_is_judged_as_part_of_its_parent(tmp_path: Path) -> None:
    document = checked(write_port(tmp_path, FLOAT32), "--exclude", "up", code=0)
    assert (document["checked"]["function"], document["checked"]["wiring"]) == (2, 2)
    faulty = write_port(tmp_path, FAULTY.replace("torch.bfloat16", "torch.float32"))
    first = checked(faulty, "--exclude", "up", code=1)["first_divergence"]
    assert (first["module"], first["into"]) == ("", "head")


def test_kept_captures_can_be_judged_again(tmp_path: Path) -> None:
    target = write_port(tmp_path, FAULTY)
    first = checked(target, "--keep", tmp_path / "run", code=1)
    assert open_capture(tmp_path / "run" / "reference.h5").complete
    again = checked(target, "--capture", tmp_path / "run" / "candidate", code=1)
    assert again["findings"] == first["findings"]


def test_kept_values_are_those_that_were_judged(tmp_path: Path) -> None:
    first = checked(write_port(tmp_path, FAULTY), "--keep", tmp_path / "run", code=1)["first_divergence"]
    values = JudgedValues(tmp_path / "run" / "judged.h5")
    (edge,) = (
        e for e in values.edges if (e.module, e.check, e.into) == (first["module"], first["check"], None)
    )
    evidence = first["evidence"]
    worst = tuple(evidence["worst_index"])
    read = values.read(edge, worst)
    assert read.oracle == pytest.approx(evidence["reference"], rel=2**-24)
    assert read.candidate == evidence["candidate"]
    error = abs(evidence["candidate"] - evidence["reference"])
    assert error / float(read.allowed) == pytest.approx(evidence["max_over_band"], rel=1e-6)


def test_a_disk_without_room_for_values_leaves_the_verdict_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(values_writer, "reserve", full)
    result = check_target(str(write_port(tmp_path, FAULTY)), keep=tmp_path / "run")
    assert result.first_divergence is not None
    assert result.exit_code == 1
    (note,) = (note for note in result.outcome.notes if "judged.h5" in note)
    assert "no room left on the disk" in note


def test_a_candidate_that_hooks_change_is_inconclusive(tmp_path: Path) -> None:
    document = checked(write_port(tmp_path, CHANGED_BY_HOOKS), code=3)
    (why,) = document["why_inconclusive"]
    assert why.startswith("looking changed the candidate's run: the outputs with hooks differ by up to 0.5")
    assert document["findings"] == []


def test_an_operator_that_is_less_precise_than_declared_names_the_recipe_that_it_needs(
    tmp_path: Path,
) -> None:
    target = write_port(tmp_path, NORM_IN_STORAGE_FORMAT)
    assert checked(target, "--recipe", "eager", code=0)["verdict"] == "aligned"
    document = checked(target, "--recipe", "fused", code=1)
    assert (document["verdict"], document["first_divergence"]) == ("undeclared_precision", None)
    (finding,) = document["findings"]
    assert (finding["module"], finding["recipe"]) == ("norm", "eager")
