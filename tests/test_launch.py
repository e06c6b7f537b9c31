"""Ranks are started and ended, and what goes wrong on one comes out as one error."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from validator.errors import LaunchError, TargetError, UsageError
from validator.launch import launch

INTERRUPTED = """
import os, signal, sys, time
from pathlib import Path
from validator.launch import launch

# What started the tests may ignore Ctrl-C, as a shell does for what runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

def wait(rank, world_size, folder):
    Path(folder, f"pid{rank}").write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    try:
        launch(wait, (sys.argv[1],), nproc=2, timeout_s=None)
    except KeyboardInterrupt:
        print("interrupted")
"""


def reduced(rank: int, world_size: int, folder: str) -> None:
    value = torch.tensor(10.0 + rank)
    dist.all_reduce(value)
    threads = os.environ["OMP_NUM_THREADS"]
    Path(folder, f"rank{rank}").write_text(f"{rank} of {world_size}: {value.item()}, {threads} threads")
    sys.stdout.write("what a rank prints is no result")


def rank_1_fails(rank: int, world_size: int, folder: str, how: str) -> None:
    _write_pid(folder, rank)
    if rank == 1:
        if how == "error":
            raise ValueError("planted")
        if how == "user's mistake":
            raise TargetError("the planted mistake")
        if how == "exit code":
            os.write(2, b"last words\n")
            os._exit(3)
        if how == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(600)
    dist.all_reduce(torch.zeros(1))


def test_every_rank_gets_its_number_a_working_group_and_its_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("getfqdn", "gethostname"):
        monkeypatch.setattr(socket, name, lambda *_: "host-that-does-not-resolve.invalid")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)

    launch(reduced, (str(tmp_path),), nproc=2, timeout_s=300)

    written = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
    assert written == ["0 of 2: 21.0, 3 threads", "1 of 2: 21.0, 3 threads"]
    assert dict(os.environ) == environment
    assert signal.getsignal(signal.SIGTERM) == handler
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("error", LaunchError, r"rank 1 raised ValueError: planted \(\S*\.py:\d+ in rank_1_fails\)"),
        ("user's mistake", TargetError, "rank 1: the planted mistake"),
        ("exit code", LaunchError, "rank 1 died with exit code 3, .*; it last wrote:\n  last words"),
        ("signal", LaunchError, r"rank 1 was killed by signal 9 \(SIGKILL\); .* ran out of memory: .*"),
    ],
    ids=["error", "user's mistake", "exit code", "signal"],
)
def test_one_rank_s_failure_is_the_only_thing_said_and_ends_the_others(
    how: str,
    kind: type[Exception],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(kind) as error:
        launch(rank_1_fails, (str(tmp_path), how), nproc=2, timeout_s=300)
    assert type(error.value) is kind
    assert re.fullmatch(message, str(error.value))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert not _running(tmp_path)


def test_the_time_limit_says_where_each_rank_was_and_ends_them(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as error:
        launch(rank_1_fails, (str(tmp_path), "hang"), nproc=2, timeout_s=20)
    assert re.fullmatch(
        r"the ranks had not finished after 20 s and were ended\. "
        r"rank 0: torch/distributed/distributed_c10d\.py:\d+ in all_reduce, "
        r"called from \S*test_launch\.py:\d+ in rank_1_fails; "
        r"rank 1: \S*test_launch\.py:\d+ in rank_1_fails\. "
        r"If nothing hangs and the model is only slow, raise --timeout\.",
        str(error.value),
    )
    assert not _running(tmp_path)


def test_an_interrupted_script_ends_its_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, script, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while len(list(tmp_path.glob("pid*"))) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            output, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (output, log) == ("interrupted\n", "")
    assert not _running(tmp_path)


@pytest.mark.parametrize(
    ("nproc", "device", "message"),
    [
        (0, "cpu", "--nproc is 0; it must be 1 or more"),
        (2, "warp", "--device 'warp' is no device that torch knows; try cpu or cuda"),
        (10_000, "cuda", r"--nproc 10000 with --device cuda needs 10000 such devices; this machine has \d+"),
    ],
    ids=["no rank", "unknown device", "too few devices"],
)
def test_what_can_t_be_launched_is_refused_at_once(nproc: int, device: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        launch(reduced, (), nproc=nproc, timeout_s=None, device=device)


def _write_pid(folder: str, rank: int) -> None:
    Path(folder, f"pid{rank}").write_text(str(os.getpid()))


def _running(folder: Path) -> list[int]:
    """Return the ranks that still run, zombies included."""
    pids = [int(file.read_text()) for file in folder.glob("pid*")]
    assert len(pids) == 2
    return [pid for pid in pids if _exists(pid)]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
