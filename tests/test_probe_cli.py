"""The command `validator probe`, from its list to its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from validator.cli import main
from validator.probing.records import Fault
from validator.report.json_report import schema

# A probe of one's own: two of the shipped cases, with a fault planted in `torch.distributed`.
PLANTED = """
\"\"\"All-reduce with a fault.\"\"\"
import os

import torch.distributed as dist
from tests.planted_collectives import ALL_REDUCE, content, PLANTED

min_ranks = 2
replaced = PLANTED[{planted!r}](int(os.environ.get("RANK", 0)), 2)
dist.all_reduce = replaced.get("all_reduce", ALL_REDUCE)


def cases(world_size):
    return [
        case
        for case in content().cases(world_size)
        if case.collective == "all_reduce" and case.name in ("integers", "bandwidth", "strided memory")
    ]
"""


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main(args)
    output = capsys.readouterr()
    return int(leave.value.code or 0), output.out, output.err


def test_the_shipped_probes_are_listed_without_running_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "probe", "--list")
    assert code == 0
    assert "collectives  Collectives of the backend at hand, against exact answers." in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "name a probe; `validator probe --list` lists those that ship"),
        (["colectives"], "no probe 'colectives'; there is: collectives"),
        (["missing.py"], "no such probe: 'missing.py'"),
        (["collectives", "--nproc", "1"], "--nproc is 1, and collectives.py needs 2 ranks"),
    ],
    ids=["no name", "unknown name", "no file", "too few ranks"],
)
def test_what_can_t_be_probed_is_one_message(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "probe", *args)
    assert code == 2
    assert err.startswith(f"error: {message}")
    assert not out


def test_a_file_without_cases_is_no_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.py"
    path.write_text("min_ranks = 2\n")
    code, out, _ = run(capsys, "probe", str(path), "--json", "-")
    document = json.loads(out)
    jsonschema.validate(document, schema())
    assert (code, document["error"]["kind"]) == (2, "target")
    assert document["error"]["message"] == f"{str(path)!r} is no probe: it defines no cases"


@pytest.mark.parametrize("ranks", ["'2'", "0", "None"])
def test_a_number_of_ranks_that_is_none_is_one_message(
    ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.py"
    path.write_text(f"min_ranks = {ranks}\n\n\ndef cases(world_size):\n    return []\n")
    code, out, err = run(capsys, "probe", str(path))
    assert (code, out) == (2, "")
    assert f"min_ranks in {str(path)!r} is {ranks}; it must be a number of ranks" in err


def probe(tmp_path: Path, planted: str) -> tuple[int, str, dict[str, Any]]:
    """Run the command on two ranks, in a process of its own: a probe may replace torch's functions."""
    path = tmp_path / "planted.py"
    path.write_text(PLANTED.format(planted=planted))
    command = [
        sys.executable,
        "-m",
        "validator",
        "probe",
        str(path),
        "--repeat",
        "1",
        "--json",
        tmp_path / "json",
    ]
    root = str(Path(__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, *sys.path])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr
    document = json.loads((tmp_path / "json").read_text())
    jsonschema.validate(document, schema())
    return done.returncode, done.stdout, document


def test_a_healthy_backend_is_right_with_figures_and_hazards(tmp_path: Path) -> None:
    code, out, document = probe(tmp_path, "healthy")
    assert (code, document["verdict"], document["problems"]) == (0, "aligned", [])
    assert "planted: every answer is right (2 ranks, gloo on cpu)" in out
    assert "all_reduce sum  float64/32/16 bfloat16 int64/32" in out
    assert [hazard["call"] for hazard in document["hazards"]] == ["all_reduce sum"]
    calls = {call["call"]: call for call in document["calls"]}
    assert [figure["bytes"] for figure in calls["all_reduce sum"]["bandwidth"]] == [1 << 10, 1 << 16, 1 << 22]


def test_a_wrong_answer_exits_with_1_and_names_the_rank(tmp_path: Path) -> None:
    code, out, document = probe(tmp_path, "dropped")
    assert (code, document["verdict"]) == (1, "divergent")
    assert {(problem["fault"], *problem["ranks"]) for problem in document["problems"]} == {
        ("contribution missing", 1)
    }
    assert "wrong       all_reduce sum: contribution missing, rank 1" in out


def test_the_schema_knows_every_fault() -> None:
    assert schema()["$defs"]["probe_problem"]["properties"]["fault"]["enum"] == [
        fault.value for fault in Fault
    ]
