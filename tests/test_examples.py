"""The shipped examples run as they are, and each shows what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from validator import demo
from validator.content import ContentKind, content_path
from validator.target import load_target

EXAMPLES = content_path(ContentKind.EXAMPLES, "README.md").parent
DENSE_TARGETS = ["tiny_dense.py", "tiny_dense_faulty.py"]
TARGETS = [*DENSE_TARGETS, "tiny_moe.py"]


def test_every_example_is_in_the_readme() -> None:
    described = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(described) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_feeds_two_full_sequences_of_text(name: str) -> None:
    ids = load_target(EXAMPLES / name).inputs()["input_ids"]
    assert ids.shape == (2, 128)
    assert bytes(ids.flatten().tolist()).decode().startswith("\ndef moving_average(values, size):\n")


@pytest.mark.parametrize("name", TARGETS)
def test_a_candidate_takes_the_dtype_of_the_command_line(name: str) -> None:
    target = load_target(EXAMPLES / name, dtype="float16")
    assert {parameter.dtype for parameter in target.candidate().parameters()} == {torch.float16}


@torch.no_grad()
def test_the_fault_is_where_the_demo_says_and_is_no_wrong_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", str(demo.PLANTED_RANK))
    faulty, healthy = (load_target(EXAMPLES / name).candidate() for name in reversed(DENSE_TARGETS))
    assert all(map(torch.equal, faulty.parameters(), healthy.parameters()))
    differ = []
    for (name, ours), theirs in zip(faulty.named_modules(), healthy.modules(), strict=True):
        if isinstance(ours, torch.nn.Linear):
            torch.manual_seed(0)
            activations = torch.randn(4, ours.in_features, dtype=torch.bfloat16)
            if not torch.equal(ours(activations), theirs(activations)):
                differ.append(name)
    assert differ == [demo.PLANTED_MODULE]


def test_the_python_example_prints_the_module_whose_epsilon_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "two_models.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("divergent: first at model.layers.1.input_layernorm\n")
    assert "\nfirst divergence: model.layers.1.input_layernorm\n" in done.stdout
