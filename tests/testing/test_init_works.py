"""A new user's commands, and the job of his CI, in an empty folder."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

BIN = Path(sys.executable).parent
FAULT = """
_sound = candidate


def candidate() -> nn.Module:
    model = _sound()
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-2
    return model
"""


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repo")
    done = shell(folder, "validator init")
    assert done.returncode == 0, done.stderr
    return folder


def shell(
    folder: Path,
    command: str,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**own, "PATH": f"{BIN}{os.pathsep}{own['PATH']}", "COLUMNS": "80", **(environment or {})},
    )


def test_pytest_passes_at_once(repo: Path) -> None:
    done = shell(repo, "pytest -p no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "test_every_layer_computes_what_the_reference_computes:\n  passed" in done.stdout


def test_the_job_fails_on_a_fault_and_leaves_its_reports(repo: Path) -> None:
    port = repo / "port.py"
    healthy = port.read_text()
    port.write_text(healthy + FAULT)
    job = yaml.safe_load((repo / ".github/workflows/validator.yml").read_text())
    commands = [step["run"] for step in job["jobs"]["port"]["steps"] if "run" in step]
    assert [command for command in commands if "pip install" in command] == commands[:1]
    (test,) = commands[1:]
    summary = repo / "step.md"
    summary.touch()
    done = shell(repo, test, {"GITHUB_STEP_SUMMARY": str(summary)})
    port.write_text(healthy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "does not hold" in done.stdout
    assert "at model.layers.1.input_layernorm." in done.stdout
    assert summary.read_text().startswith("## The port does not hold: 1 of 1 test")
    assert json.loads((repo / "reports/summary.json").read_text())["verdict"] == "failed"
    names = {path.name for path in (repo / "reports").iterdir()}
    assert {"summary.json", "junit.xml"} < names
    assert len(names) == 3
