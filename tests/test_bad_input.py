"""What a user gets wrong ends in one message and exit code 2, whatever part of the chain finds it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from tests.small_port import write_port
from validator import cli
from validator.numerics.recipes import RECIPES
from validator.report.json_report import schema

NO_REFERENCE = "del reference\n"
FAILING_REFERENCE = """
def reference():
    raise OSError("the weights are on another machine")
"""
OTHER_NAMES = """
class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 64)
        self.out = nn.Linear(64, 32)

    def forward(self, input_ids):
        return self.out(self.tokens(input_ids))


def candidate():
    return Other()
"""
OTHER_VOCABULARY = """
def candidate():
    return Net(vocabulary=40)
"""
NO_SUCH_TOKEN = """
def inputs():
    return {"input_ids": torch.full((1, 4), 32)}
"""
FAILING_CANDIDATE = """
class Failing(Net):
    def forward(self, input_ids):
        raise NotImplementedError("no kernel for this shape")


def candidate():
    return Failing()
"""
# Rank 0 waits for rank 1, which never arrives: the fault of one rank is what must be told, not its echo.
FAILING_RANK = """
class Stopping(Net):
    def forward(self, input_ids):
        if os.environ["RANK"] == "1":
            {how}  # planted
        torch.distributed.barrier()
        return super().forward(input_ids)


def candidate():
    return Stopping()
"""


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def failure(*args: str | Path) -> str:
    """Run a `validator check` that fails, hold its exit code and streams to the rules; return its message."""
    json_path = Path(str(args[0])).parent / "result.json"
    done = run("check", *args, "--json", json_path)
    assert (done.exit_code, done.stdout) == (2, ""), done.stdout
    document = json.loads(json_path.read_text(encoding="utf-8"))
    jsonschema.validate(document, schema())
    message: str = document["error"]["message"]
    assert done.stderr == f"error: {message}\n"
    return message


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete capture of the small port, to be copied before it is damaged."""
    folder = tmp_path_factory.mktemp("captured")
    assert run("capture", write_port(folder), "-o", folder / "cand").exit_code == 0
    return folder / "cand"


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (NO_REFERENCE, "target", "port.py has no reference; it has candidate, inputs, "),
        (FAILING_REFERENCE, "target", "failed: OSError: the weights are on another machine (port.py:"),
    ],
    ids=["no-reference", "failing-reference"],
)
def test_the_command_tells_a_targets_mistake_without_a_traceback(
    tmp_path: Path, changes: str, kind: str, message: str
) -> None:
    command = [sys.executable, "-m", "validator", "check", "port.py", "--json", "-"]
    write_port(tmp_path, changes)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["error"]["kind"] == kind
    assert message in document["error"]["message"]
    assert done.stderr == f"error: {document['error']['message']}\n"


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    message = failure(tmp_path / "prot.py")
    assert (
        message == f"no such target: {str(tmp_path / 'prot.py')!r}. Give a Python file or a checkpoint folder"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (OTHER_NAMES, "the two models share no module name, so nothing can be compared"),
        (OTHER_VOCABULARY, "embed.weight has 40 rows in the candidate and 32 in the reference"),
        (NO_SUCH_TOKEN, "the reference fails on inputs(): IndexError: index out of range"),
        (FAILING_CANDIDATE, "the candidate fails on inputs(): NotImplementedError: no kernel for this shape"),
    ],
    ids=["other-names", "other-vocabulary", "failing-reference-run", "failing-candidate-run"],
)
def test_two_sides_that_can_not_be_run_or_compared_are_told_apart(
    tmp_path: Path, changes: str, message: str
) -> None:
    assert message in failure(write_port(tmp_path, changes))


def test_models_of_other_names_are_both_listed_with_what_to_write(tmp_path: Path) -> None:
    message = failure(write_port(tmp_path, OTHER_NAMES))
    assert "candidate: 'tokens', 'out'\n" in message
    assert "reference: 'embed', 'up', 'head'\n" in message
    assert "names = {" in message


def test_inputs_on_which_a_model_fails_are_shown_with_the_line(tmp_path: Path) -> None:
    message = failure(write_port(tmp_path, FAILING_CANDIDATE))
    assert "in forward)" in message
    assert "gave input_ids [2, 32] int64" in message


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("os._exit(7)", "rank 1 died with exit code 7, without an error"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by signal 9 (SIGKILL)"),
        ('raise ValueError("bad shard")', "rank 1: the candidate fails on inputs(): ValueError: bad shard"),
    ],
    ids=["exits", "killed", "raises"],
)
def test_a_rank_that_stops_in_the_middle_is_named(tmp_path: Path, how: str, message: str) -> None:
    target = write_port(tmp_path, FAILING_RANK.format(how=how))
    assert failure(target, "--nproc", "2").startswith(message)


def test_a_rank_that_hangs_is_ended_and_each_rank_says_where_it_was(tmp_path: Path) -> None:
    target = write_port(tmp_path, FAILING_RANK.format(how="time.sleep(600)"))
    line = next(n for n, text in enumerate(target.read_text().splitlines(), 1) if text.endswith("# planted"))
    message = failure(target, "--nproc", "2", "--timeout", "20")
    assert "had not finished after 20 s and were ended" in message
    assert f"rank 1: {target}:{line} in forward" in message
    assert f"called from {target}:{line + 1} in forward; rank 1" in message  # rank 0, in its barrier


def test_a_capture_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    message = failure(write_port(tmp_path), "--capture", tmp_path / "cand")
    assert "no such capture. `validator capture TARGET:candidate -o " in message


@pytest.mark.parametrize("name", ["cand", "cand.partial"])
def test_a_capture_that_did_not_end_is_never_judged(tmp_path: Path, captured: Path, name: str) -> None:
    shutil.copytree(captured, tmp_path / "cand.partial")
    (tmp_path / "cand.partial" / "manifest.json").unlink()
    message = failure(write_port(tmp_path), "--capture", tmp_path / name)
    assert "the capture did not end: rank 0 got to call " in message


def test_a_truncated_capture_is_named_with_its_file(tmp_path: Path, captured: Path) -> None:
    file = shutil.copytree(captured, tmp_path / "cand") / "rank0.h5"
    os.truncate(file, file.stat().st_size // 2)
    message = failure(write_port(tmp_path), "--capture", tmp_path / "cand")
    assert f"{file}: damaged or truncated" in message
    assert "make the capture again" in message


def test_a_capture_without_one_of_its_ranks_is_not_judged(tmp_path: Path, captured: Path) -> None:
    folder = shutil.copytree(captured, tmp_path / "cand")
    (folder / "rank0.h5").unlink()
    assert "rank0.h5" in failure(write_port(tmp_path), "--capture", folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (OTHER_NAMES, "the two models share no module name"),
        (OTHER_VOCABULARY, "different vocabularies: embed.weight has 32 rows in the candidate and 40"),
    ],
    ids=["other-names", "other-vocabulary"],
)
def test_a_capture_of_another_model_is_refused(
    tmp_path: Path, captured: Path, changes: str, message: str
) -> None:
    target = write_port(tmp_path, changes.replace("def candidate", "def reference"))
    assert message in failure(target, "--capture", captured)


def test_a_file_that_is_no_capture_is_refused(tmp_path: Path) -> None:
    target = write_port(tmp_path)
    assert "not an HDF5 file, so no capture" in failure(target, "--capture", target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc", "2"], "--nproc can't be used with --capture: it says how to run the candidate"),
        (["--dtype", "float16", "--include", "up"], "--dtype, --include can't be used with --capture"),
    ],
    ids=["nproc", "dtype-and-include"],
)
def test_what_says_how_to_run_the_candidate_is_refused_where_it_ran_already(
    tmp_path: Path, captured: Path, options: list[str], message: str
) -> None:
    assert message in failure(write_port(tmp_path), "--capture", captured, *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recipe", "fusd"], f"--recipe 'fusd' is not known; there are {', '.join(RECIPES)}"),
        (["--dtype", "bf16"], "--dtype 'bf16' is no floating format of torch; try bfloat16,"),
        (["--dtype", "float16"], "takes no argument 'dtype'. Write `def candidate(dtype=...)`"),
        (["--include", "layers.*"], "'layers.*' matches no module of this model"),
    ],
    ids=["recipe", "unknown-dtype", "dtype-not-taken", "include-matches-nothing"],
)
def test_an_option_that_can_not_be_followed_is_shown(
    tmp_path: Path, options: list[str], message: str
) -> None:
    assert message in failure(write_port(tmp_path), *options)


def test_captures_that_are_kept_already_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "run" / "candidate").mkdir(parents=True)
    message = failure(write_port(tmp_path), "--keep", tmp_path / "run")
    assert message.endswith("run holds candidate already; name a new folder, or remove it")


@pytest.mark.parametrize(
    ("where", "reason"), [("absent/result.json", "No such file"), (".", "Is a directory")], ids=str
)
def test_json_that_can_not_be_written_is_found_out_before_the_work(
    tmp_path: Path, where: str, reason: str
) -> None:
    done = run("check", write_port(tmp_path, FAILING_REFERENCE), "--json", tmp_path / where)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --json can't write ")
    assert reason in done.stderr
    assert "another machine" not in done.stderr


def test_one_file_can_not_hold_two_ranks(tmp_path: Path) -> None:
    done = run("capture", write_port(tmp_path), "--nproc", "2", "-o", tmp_path / "cand.h5")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is one file, for one rank, and --nproc is 2: give a name without .h5" in done.stderr
