"""Commands inside a run that torchrun started, on hosts that share no folder."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_port import write_port
from validator.api import capture_target
from validator.capturing.reader import open_capture
from validator.errors import UsageError
from validator.torchrun import Launched, launched

# Half of the head's columns on each rank, and their sum.
SHARDED = """
class Head(nn.Module):
    def __init__(self, whole):
        super().__init__()
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.weight = nn.Parameter(whole.weight.detach().chunk(size, 1)[rank].clone())

    def forward(self, x):
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        logits = x.chunk(size, -1)[rank] @ self.weight.T
        torch.distributed.all_reduce(logits)
        return logits


def reference():
    torch.manual_seed(0)
    return Net()


def candidate():
    net = reference()
    net.head = Head(net.head)
    return net
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def test_captures_of_two_hosts_are_judged_once_copied_together(tmp_path: Path) -> None:
    port = free_port()
    target = write_port(tmp_path, SHARDED)
    processes = []
    for rank, host in enumerate(("one", "two")):
        command = [sys.executable, "-m", "validator", "capture", target, "-o", tmp_path / host / "run"]
        processes.append(
            subprocess.Popen(
                command,
                env=os.environ | environment(rank, 2, port),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    answers = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert [out for out, _ in answers] == [f"{tmp_path / host / 'run'}\n" for host in ("one", "two")]

    def check(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "validator", "check", target, "--capture", folder]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    alone = check(tmp_path / "one" / "run")
    assert alone.returncode == 2
    assert re.search(r"error: \S+: rank 1 of 2 is missing\..* copy rank1\.h5 from host", alone.stderr)

    merged = tmp_path / "merged"
    for host in ("one", "two"):
        shutil.copytree(tmp_path / host / "run", merged, dirs_exist_ok=True)
    assert open_capture(merged).ranks == (0, 1)
    both = check(merged)
    assert both.returncode == 0, both.stdout + both.stderr


@pytest.mark.parametrize(
    ("side", "nproc", "message"),
    [
        (
            "reference",
            1,
            "this process is rank 1 of 4 of a run that torchrun started, and the reference runs in",
        ),
        ("candidate", 2, "which starts and ends the ranks: leave out --nproc and --timeout"),
    ],
)
def test_what_torchrun_does_is_not_done_again_inside_of_it(
    side: str, nproc: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(1, 4, 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        capture_target(str(write_port(tmp_path)), side, tmp_path / "run", nproc=nproc)


def test_a_process_of_its_own_and_a_run_of_one_rank_are_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment(0, 1, 1):
        monkeypatch.delenv(name, raising=False)
    assert launched() is None
    for name, value in environment(0, 1, 1).items():
        monkeypatch.setenv(name, value)
    assert launched() is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launched() == Launched(rank=0, world_size=2)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(UsageError, match="RANK is 'first' and WORLD_SIZE is '2': set numbers, or unset both"):
        launched()
