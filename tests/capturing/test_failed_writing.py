"""Captures whose writing did not end: killed, or out of room. What was flushed is not lost."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.capturing import killed_runs
from validator.capturing.reader import open_capture
from validator.errors import CaptureError, IncompleteCaptureError

TRIALS = 12
CALLS = killed_runs.STEPS * (killed_runs.LAYERS + 1)


def run_script(name, *args):
    command = [sys.executable, str(Path(__file__).with_name(name)), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd(), timeout=300)


def check_capture(path, *, complete):
    """Read all that a capture holds, and return its ranks' runs."""
    opened = open_capture(path, allow_incomplete=not complete)
    assert opened.complete is complete
    runs = [opened.rank(rank) for rank in opened.ranks]
    for run in runs:
        check_values(run)
    return runs


def check_values(run):
    """Read every value of a run of `killed_runs`, and hold it to what it must be."""
    for call in run.calls:
        step = killed_runs.LAYERS * call.n
        if call.module:
            step += int(call.module.removeprefix("layers."))
        assert torch.equal(call.inputs["x"].read(), torch.full((30_000,), float(step)))
        if call.end is not None:
            after = step + (1 if call.module else killed_runs.LAYERS)
            assert torch.equal(call.outputs[""].read(), torch.full((30_000,), float(after)))
    for collective in run.collectives:
        assert torch.equal(collective.entered[0].read(), collective.left[0].read())


def test_a_killed_capture_is_never_taken_for_a_complete_one_and_is_usually_readable(tmp_path):
    run_s = killed_runs.STEPS * killed_runs.STEP_S  # and what the steps themselves take
    delays = np.random.default_rng(0).uniform(0, 1.25 * run_s, TRIALS)
    run_script("killed_runs.py", tmp_path, 0, *delays)
    runs = [tmp_path / f"run{i}" for i in range(TRIALS)]
    complete = [path for path in runs if path.exists()]
    incomplete = [path for path in runs if not path.exists()]
    for path in complete:
        assert {len(run.calls) for run in check_capture(path, complete=True)} == {CALLS}
    readable = recovered = 0
    for path in incomplete:
        with pytest.raises(CaptureError, match=r"did not end|is still being written|no such capture"):
            open_capture(path)
        with contextlib.suppress(CaptureError):
            found = check_capture(path, complete=False)
            readable += len(found) == 2
            recovered += sum(len(run.calls) for run in found)
    # The moments lie before the run, in it and after it, so most trials are of the second kind.
    assert readable >= TRIALS // 2
    assert recovered > CALLS


def test_a_full_disk_ends_in_a_clear_message_and_what_was_flushed_is_readable(tmp_path):
    path = tmp_path / "run.h5"
    message = run_script("full_disk.py", path, 8 << 20).stdout
    assert "no room left on the disk" in message
    assert "include= takes globs" in message
    with pytest.raises(IncompleteCaptureError, match="no room left on the disk"):
        open_capture(path)
    run = open_capture(path, allow_incomplete=True).rank(0)
    assert len(run.calls) > 20
    for call in run.calls:
        i, large = divmod(call.n, 2)
        value = call.inputs["input"].read()
        if large:
            expected = torch.rand(30_000, generator=torch.Generator().manual_seed(i))
        else:
            expected = torch.full((5000,), float(i))
        assert torch.equal(value, expected)


def test_a_disk_without_any_room_is_a_clear_message_too(tmp_path):
    message = run_script("full_disk.py", tmp_path / "run.h5", 1000).stdout
    assert "run.h5" in message
    assert "room" in message
