"""The files that a result goes to: found out before the work, and never half of one."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.report.results import search_result
from validator.commands.files import ResultFiles
from validator.commands.running import clear
from validator.errors import UsageError
from validator.report.bisection import BisectionResult

FILES = ("--json", "--html", "--csv", "--markdown")


@pytest.mark.parametrize("option", FILES)
@pytest.mark.parametrize(
    ("name", "why"),
    [("folder", "Is a directory"), ("nowhere/x", "No such file"), ("file/x", "Not a directory")],
)
def test_where_one_can_not_be_written_no_other_is_touched_or_made(
    option: str, name: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    files = {"--older": tmp_path / "file", "--new": tmp_path / "new", option: tmp_path / name}
    with pytest.raises(UsageError, match=f"{option} can't write .*{why}.*; name a file that you may write"):
        clear(files, read={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_that_can_be_written_is_not_there_before_its_result(tmp_path: Path) -> None:
    older = tmp_path / "older.json"
    older.write_text("of another run")
    clear({"--json": older, "--html": tmp_path / "new.html", "--csv": None}, read={})
    assert [path.name for path in tmp_path.iterdir()] == ["older.json"]
    assert older.read_text() == ""


def test_two_results_do_not_go_to_one_file_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "page")
    files = {"--html": tmp_path / "page", "--csv": tmp_path / "link"}
    with pytest.raises(UsageError, match=r"--csv .* would overwrite what --html writes"):
        clear(files, read={})
    assert os.listdir(tmp_path) == ["link"]


def test_a_link_to_a_file_that_is_not_there_yet_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "page")
    clear({"--html": link}, read={})
    assert link.is_symlink()
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("option", FILES[1:])
def test_stdout_is_for_json_alone(option: str) -> None:
    clear({"--json": "-"}, read={})
    with pytest.raises(UsageError, match=f"{option} -: only --json writes to stdout"):
        clear({option: "-"}, read={})


def test_no_result_takes_the_place_of_a_folder_that_is_made_during_the_work(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.raises(UsageError, match=r"--html .* would overwrite the folder of --keep"):
        clear({"--html": kept}, read={}, folders={"--keep": kept, "--repro": None})
    kept.mkdir()
    clear({"--html": kept / "page"}, read={}, folders={"--keep": kept})


def test_what_is_read_is_kept_and_a_new_file_beside_it_is_fine(tmp_path: Path) -> None:
    (tmp_path / "rank0.h5").write_text("mine")
    for name, what in (("rank0.h5", "a file of the capture"), (".", "the capture")):
        with pytest.raises(UsageError, match=f"--html .* would overwrite {what};"):
            clear({"--html": tmp_path / name}, read={"the capture": tmp_path, "the target": None})
    clear({"--html": tmp_path / "page"}, read={"the capture": tmp_path, "nothing": ""})
    assert (tmp_path / "rank0.h5").read_text() == "mine"


def test_a_pipe_is_not_opened_before_there_is_something_for_it(tmp_path: Path) -> None:
    """To open one waits for its reader, who would see an end when it is closed again."""
    os.mkfifo(tmp_path / "pipe")
    clear({"--json": tmp_path / "pipe"}, read={})
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("option", ["html", "csv", "markdown"])
def test_of_a_disk_that_is_full_no_half_is_left_and_the_result_is_shown(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result"

    def fails(*_: Any, **__: Any) -> None:
        path.write_text("<html>")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(BisectionResult, f"write_{option}", fails)
    with pytest.raises(UsageError, match=f"--{option} can't write .*No space left"):
        ResultFiles(**{option: path}).hand_out(search_result("a.b"))
    assert path.read_text() == ""
    assert capsys.readouterr().out.startswith("divergent: first at a.b")
