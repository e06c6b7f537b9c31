"""`validation.baseline`: a missing one fails, only an update writes, and the run that wrote fails."""

from pathlib import Path

import pytest

from tests.small_port import write_port
from tests.testing.test_plugin import run_pytest, section

pytest_plugins = ["pytester"]

HELD = '''
def test_held(validation):
    """The port is what its baseline was."""
    validation.baseline("small", side="candidate", demands_bits=True, dtype="bfloat16")
'''
OPTIONS = ("--validator-target=port.py", "--validator-baselines=kept")
UPDATE = "--validator-update-baselines"


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    pytester.makepyfile(test_held=HELD)
    write(pytester.path, seed=1)
    return pytester.path


def write(folder: Path, *, seed: int) -> None:
    seeded = f"\n\ndef reference():\n    torch.manual_seed({seed})\n    return Net()\n"
    seeded += f"\n\ndef candidate(dtype=torch.bfloat16):\n    torch.manual_seed({seed})\n"
    seeded += "    return Net().to(dtype)\n"
    write_port(folder, seeded)


def test_a_missing_baseline_fails_an_update_writes_and_fails_and_the_next_run_passes(folder: Path) -> None:
    missing = run_pytest(folder, *OPTIONS)
    assert missing.returncode == 1
    assert "no baseline 'small' in 'kept'; there is: none" in words(missing.stdout)
    assert not (folder / "kept").exists()
    written = run_pytest(folder, *OPTIONS, UPDATE)
    assert written.returncode == 1
    assert "recorded small in kept/small, because: no baseline 'small'" in words(written.stdout)
    first = (folder / "kept" / "small" / "baseline.json").read_text()
    # What is already so is not written again.
    assert run_pytest(folder, *OPTIONS, UPDATE).returncode == 0
    assert (folder / "kept" / "small" / "baseline.json").read_text() == first
    write(folder, seed=2)
    assert run_pytest(folder, *OPTIONS).returncode == 1
    assert (folder / "kept" / "small" / "baseline.json").read_text() == first
    changed = run_pytest(folder, *OPTIONS, UPDATE, "--junit-xml=j.xml")
    assert changed.returncode == 1
    text = "\n".join(section(changed.stdout, "test_held"))
    assert "replaced small in kept/small, because: not what small was" in text
    assert "reference" in text
    assert "relative L2" in text
    told = (folder / "j.xml").read_text()
    assert told.count('name="validator.baseline small" value="recorded"') == 1
    assert told.count("validator.baseline small") == 1
    assert run_pytest(folder, *OPTIONS).returncode == 0


def words(text: str) -> str:
    return " ".join(text.split())
