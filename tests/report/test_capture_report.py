"""`validator report CAPTURE`: text, JSON, CSV and Markdown of one capture, and exit codes."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.report.captures import Block, Near, Overflowing, Tiny, WithNan, captured
from tests.small_port import write_port
from validator import cli
from validator.report.capture_ranges import ranges_of
from validator.report.capture_report import CaptureReport
from validator.report.json_report import schema

TWO_RANKS = """
import torch.distributed as dist


class Ranked(Net):
    def forward(self, input_ids):
        hidden = self.up(self.embed(input_ids))
        if dist.get_rank() == 1:
            hidden = hidden.clone()
            hidden[0, 7, 3] = torch.nan
        dist.all_reduce(hidden)
        return self.head(hidden)


def candidate():
    return Ranked()
"""


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def text(path: Path, middle: type[Block], **options: Any) -> str:
    return str(CaptureReport(ranges_of(captured(path, middle, **options))))


def test_a_healthy_capture_is_all_numbers_and_exits_with_0(tmp_path: Path) -> None:
    captured(tmp_path / "run")
    result = run("report", tmp_path / "run")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "all numbers: 42 tensors of 12 modules"
    assert [line.split()[0] for line in lines if line.startswith(" layers.")] == [
        f"layers.{i}" for i in range(3)
    ]
    assert "in 3 tensors" in next(line for line in lines if "masks" in line)
    assert "overflow" not in result.stdout


@pytest.mark.parametrize(
    ("middle", "headline"),
    [
        (WithNan, "NaN, first in layers.1, output, element [0, 3, 2]"),
        (Overflowing, "infinity, first in layers.1, output, element [0, 0, 0]"),
    ],
)
def test_what_is_no_number_is_named_and_exits_with_1(
    tmp_path: Path, middle: type[Block], headline: str
) -> None:
    captured(tmp_path / "run", middle)
    result = run("report", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == headline


def test_numbers_near_the_limits_are_named_and_are_no_failure(tmp_path: Path) -> None:
    report = CaptureReport(ranges_of(captured(tmp_path / "run", Near)))
    assert report.exit_code == 0
    shown = " ".join(str(report).split())
    assert re.search(r"factor of 2 of the largest number: layers\.1 \((49|50)\d{3} in float16\); ", shown)
    shown = " ".join(text(tmp_path / "tiny", Tiny).split())
    assert "smallest normal number: layers.1.scale (7.1e-6 in float16, 50.0% subnormal)" in shown


def test_outputs_of_nothing_but_zeros_are_named(tmp_path: Path) -> None:
    class Dead(Block):
        def __init__(self) -> None:
            super().__init__()
            self.down.weight.data.zero_()
            self.down.bias.data.zero_()

    assert "nothing else in layers.1.down" in text(tmp_path / "run", Dead)


def test_files_hold_every_tensor(tmp_path: Path) -> None:
    captured(tmp_path / "run", WithNan, calls=2)
    files = [tmp_path / name for name in ("out.json", "out.csv", "out.md", "out.html")]
    options = zip(("--json", "--csv", "--markdown", "--html"), files, strict=True)
    result = run("report", tmp_path / "run", *(word for option in options for word in option))
    assert result.exit_code == 1
    document = json.loads(files[0].read_text())
    jsonschema.validate(document, schema(), cls=jsonschema.Draft202012Validator)
    assert document["first_nan"]["index"] == [0, 3, 2]
    frame = pd.read_csv(files[1])
    assert len(frame) == len(document["tensors"])
    row = frame[(frame.module == "layers.1") & (frame.side == "output")].iloc[0]
    assert (row.calls, row.elements, row["nan"]) == (2, 2 * 4 * 32, 2)
    assert "| `layers.1` | float16 |" in files[2].read_text()
    assert "<title>NaN, first in layers.1, output, element [0, 3, 2]</title>" in files[3].read_text()


def test_json_alone_goes_to_stdout(tmp_path: Path) -> None:
    captured(tmp_path / "run")
    document = json.loads(run("report", tmp_path / "run", "--json", "-").stdout)
    assert (document["first_nan"], document["complete"], document["level"]) == (None, True, "full")


def test_an_incomplete_capture_is_described_as_far_as_it_got_and_exits_with_3(tmp_path: Path) -> None:
    class Interrupted(Block):
        def changed(self, y: object) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        captured(tmp_path / "run", Interrupted)
    result = run("report", tmp_path / "run")
    assert result.exit_code == 3
    assert result.stdout.startswith("incomplete capture, so far all numbers: ")


def test_each_rank_has_its_rows(tmp_path: Path) -> None:
    port = write_port(tmp_path, TWO_RANKS)
    made = run("capture", f"{port}:candidate", "--nproc", 2, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.output
    result = run("report", tmp_path / "run")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    first = "NaN, first in (the model itself), entered all_reduce 0, rank 1, element [0, 7, 3]"
    assert " ".join(result.stdout.split()).startswith(first)
    assert [line.split()[-1] for line in lines if line.startswith(" embed ")] == ["0-1"]
    assert [line.split()[-1] for line in lines if line.startswith(" up ")] == ["0-1"]


def test_a_capture_that_is_none_is_one_message(tmp_path: Path) -> None:
    result = run("report", tmp_path / "nothing")
    assert result.exit_code == 2
    path = tmp_path / "nothing"
    assert result.stderr == (
        f"error: {path}: no such capture. `validator capture TARGET:candidate -o {path}` makes one.\n"
    )


def test_two_captures_are_for_compare(tmp_path: Path) -> None:
    result = run("report", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 2
    assert "`validator compare` takes two captures" in result.stderr


def test_a_file_of_the_capture_is_not_overwritten(tmp_path: Path) -> None:
    captured(tmp_path / "run")
    result = run("report", tmp_path / "run", "--csv", tmp_path / "run" / "rank0.h5")
    assert result.exit_code == 2
    assert "--csv" in result.stderr
    assert run("report", tmp_path / "run").exit_code == 0
