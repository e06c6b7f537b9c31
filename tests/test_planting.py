"""`--plant` spoils the candidate alone, says so, and the fault is named at the module of its record."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.small_port import write_port
from validator import cli
from validator.api import check_target, compare
from validator.checks.findings import Verdict
from validator.faults import parse, registry

LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = dict(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)


def reference():
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(40)  # peaked attention, which shows a wrong scale
            layer.self_attn.k_proj.weight.mul_(40)
    return model


def candidate():
    model = reference()
    for parameter in model.parameters():  # and not the rotary frequencies, which Module.to would cast too
        parameter.data = parameter.data.to(torch.bfloat16)
    return model


def inputs():
    return {"input_ids": torch.arange(64).remainder(32).view(2, 32), "use_cache": False}
"""


@pytest.fixture
def llama(tmp_path: Path) -> str:
    path = tmp_path / "port.py"
    path.write_text(LLAMA, encoding="utf-8")
    return str(path)


def run(*args: str) -> Any:
    return CliRunner().invoke(cli.app, list(args))


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_planted_fault_is_named_and_reported_as_planted(llama: str, nproc: int) -> None:
    text = f"weight-row:layer=1,row=5,factor=1.02,rank={nproc - 1}"
    result = check_target(llama, plant=text, nproc=nproc)
    first = result.first_divergence
    assert first is not None
    assert fnmatchcase(first.module, parse(text).module)
    expected = f"*layers.1.mlp.up_proj on rank {nproc - 1} is to be named"
    assert result.outcome.notes[0] == f"a fault was planted in the candidate: {text}; {expected}"
    assert result.outcome.run["command"].endswith(f"--plant {text}")


def test_the_same_port_without_a_fault_is_aligned_and_has_no_note(llama: str) -> None:
    result = check_target(llama)
    assert result.verdict is Verdict.ALIGNED
    assert "planted" not in str(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plant", "atn-scale"], "no fault is called 'atn-scale'; did you mean 'attn-scale'?"),
        (["--plant", "attn-scale"], "no fault can be planted in Net: none of its modules has both"),
        (["--plant", "attn-scale", "--capture", "run"], "--plant can't be used with --capture"),
    ],
)
def test_a_fault_that_can_not_be_planted_is_one_message(
    tmp_path: Path, options: list[str], message: str
) -> None:
    result = run("check", str(write_port(tmp_path)), *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_the_faults_are_listed_with_their_parameters() -> None:
    result = run("faults")
    assert result.exit_code == 0
    for name in registry():
        assert f"\n{name} " in result.stdout
    assert "factor=1.01" in result.stdout


def test_no_fault_is_planted_in_the_reference(llama: str, tmp_path: Path) -> None:
    result = run("capture", f"{llama}:reference", "-o", str(tmp_path / "a.h5"), "--plant", "attn-scale")
    assert result.exit_code == 2
    assert "--plant attn-scale would spoil the reference" in result.stderr
    assert not (tmp_path / "a.h5").exists()


def test_a_fault_can_be_planted_in_a_capture(llama: str, tmp_path: Path) -> None:
    for name, options in (("healthy", []), ("faulty", ["--plant", "rope-sign:layer=1"])):
        assert run("capture", llama, "-o", str(tmp_path / f"{name}.h5"), *options).exit_code == 0
    comparison = compare(ref=tmp_path / "healthy.h5", cand=tmp_path / "faulty.h5").comparison
    assert comparison.first_difference is not None
    assert comparison.first_difference.module == "model.layers.1.self_attn.o_proj"


def test_what_judges_a_capture_says_that_a_fault_was_planted_in_it(llama: str, tmp_path: Path) -> None:
    path = tmp_path / "faulty.h5"
    assert run("capture", llama, "-o", str(path), "--plant", "rope-sign:layer=1").exit_code == 0
    result = check_target(llama, capture=path)
    assert result.outcome.notes[0].startswith("a fault was planted in the candidate: rope-sign:layer=1; ")
