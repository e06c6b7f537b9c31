"""The shipped examples run as they are, and each shows what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from validator import demo
from validator.api import check_target
from validator.checks.findings import Check, Outcome
from validator.content import ContentKind, content_path
from validator.report.finding_text import next_command
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


def test_what_the_faulty_example_is_told_to_run_next_says_nothing_of_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = shlex.quote(str(EXAMPLES / "tiny_dense_faulty.py"))
    command = f"validator check {target} --nproc 2"
    first = _checked(command)
    onward = next_command(first, first.findings[0])
    assert onward == f"{command} --include '{demo.PLANTED_MODULE}*' --keep run"
    narrowed = _checked(onward)
    # All that the first run said of the module, and of nothing else.
    assert {finding.module for finding in narrowed.findings} == {demo.PLANTED_MODULE}
    assert (narrowed.findings[0].check, narrowed.findings[0].rank) == (Check.PARTIAL, demo.PLANTED_RANK)
    modules = len({j.module for j in first.judgements} - {demo.PLANTED_MODULE})
    (why,) = narrowed.why_inconclusive
    count = re.match(r"(\d+) modules, the model itself among them, were left out by --include", why)
    assert count is not None
    assert int(count[1]) >= modules
    assert (narrowed.unchecked, narrowed.unobservable, narrowed.notes) == ((), (), ())
    assert next_command(narrowed, narrowed.findings[0]) == onward.replace("--keep run", "--repro repro")


def _checked(command: str) -> Outcome:
    """Run `validator check ...` as the command line does, but in this process, and return what it found."""
    words = shlex.split(command)
    options = {name.removeprefix("--"): value for name, value in zip(words[3::2], words[4::2], strict=True)}
    keep = options.get("keep")
    return check_target(
        words[2],
        nproc=int(options["nproc"]),
        include=(options["include"],) if "include" in options else (),
        keep=None if keep is None else Path(keep),
    ).outcome


def test_the_python_example_prints_the_module_whose_epsilon_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "two_models.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("divergent: first at model.layers.1.input_layernorm\n")
    assert "\nfirst divergence: model.layers.1.input_layernorm\n" in done.stdout
