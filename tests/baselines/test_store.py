"""Baselines on disk: hostile and broken ones end in one message, and a write that fails loses nothing."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.baselines.test_runs import port
from validator.baselines.recording import record_figures, record_run
from validator.baselines.records import Baseline, hash_of
from validator.baselines.store import listed, read_baseline, replaced, write_baseline
from validator.cli import app
from validator.errors import CaptureError, UsageError

Change = Callable[[Path], object]


def figures(folder: Path, value: float = 3.0) -> Path:
    path = folder / "figures.json"
    path.write_text(json.dumps({"figures": {"kl": {"value": value, "error": 0.1}}}))
    return path


def kept(folder: Path, name: str = "one") -> Path:
    record_figures(name, figures(folder), folder=folder / "kept")
    return folder / "kept" / name


def said(**fields: Any) -> Change:
    """Return what writes other fields, with a hash that fits them."""

    def change(path: Path) -> None:
        document = json.loads((path / "baseline.json").read_text()) | fields
        document.pop("hash")
        document["hash"] = hash_of(document)
        (path / "baseline.json").write_text(json.dumps(document))

    return change


def linked(path: Path) -> None:
    outside = path.parent.parent / "outside"
    outside.write_text("secret")
    (path / "reference.h5").symlink_to(outside)
    digest = hashlib.blake2b(b"secret", digest_size=16).hexdigest()
    said(files={"reference.h5": digest})(path)


BROKEN: dict[str, tuple[Change, str]] = {
    "utf-8": (lambda path: (path / "baseline.json").write_bytes(b"\xff\xfe{}"), "can't be read"),
    "no-json": (lambda path: (path / "baseline.json").write_text("{"), "can't be read"),
    "list": (lambda path: (path / "baseline.json").write_text("[]"), "can't be read"),
    "deep": (lambda path: (path / "baseline.json").write_text("[" * 100_000), "can't be read"),
    "inputs": (said(run={"inputs": 3}), "inputs is 3, not a mapping"),
    "input": (said(run={"inputs": {"x": 3}}), "the input x is 3, not a mapping"),
    "hardware": (said(run={"hardware": ["x"]}), "hardware is 'x', not a mapping"),
    "devices": (said(run={"hardware": [{"devices": [1]}]}), "a device is 1, not a mapping"),
    "nan": (said(figures={"kl": {"value": float("nan")}}), "NaN is no number of JSON"),
    "huge": (
        lambda path: (path / "baseline.json").write_text(
            (path / "baseline.json").read_text().replace("3.0", "1e999")
        ),
        "it is not finite",
    ),
    "schema": (said(schema=0), "has schema 0 and this validator reads 1"),
    "name": (said(name="other"), "is of the baseline 'other' and lies in a folder 'one'"),
    "edited": (
        lambda path: (path / "baseline.json").write_text(
            (path / "baseline.json").read_text().replace("3.0", "4.0")
        ),
        "was changed since it was recorded",
    ),
    "outside": (said(files={"../../elsewhere": "0"}), "a file outside of the baseline"),
    "nul": (said(files={"a\0": "0"}), "can't be read"),
    "lacking": (said(files={"a": "0"}), "lacks 'a', which was recorded"),
    "unlisted": (lambda path: (path / "rank0.h5").touch(), "holds 'rank0.h5', which was not recorded"),
    "link": (linked, "is a link to a file outside of it"),
    "loop": (
        lambda path: ((path / "a").symlink_to("a"), said(files={"a": "0"})(path)),
        "baseline",
    ),
    "run-without-capture": (said(kind="run"), "a run without reference.h5"),
}


@pytest.mark.parametrize("kind", list(BROKEN))
def test_a_broken_baseline_is_one_message_everywhere(kind: str, tmp_path: Path) -> None:
    change, message = BROKEN[kind]
    path = kept(tmp_path)
    change(path)
    folder, given = str(path.parent), str(figures(tmp_path))
    runner = CliRunner()
    for words in (["check", "one", "--figures", given], ["show", "one"], ["show", "one", "--json", "-"]):
        result = runner.invoke(app, ["baseline", *words, "--baselines", folder])
        assert result.exit_code == 2, result.output
        assert result.output.count("error: ") == 1
        assert message in " ".join(result.output.split())
        assert "Traceback" not in result.output
    result = runner.invoke(app, ["baseline", "list", "--baselines", folder])
    assert (result.exit_code, "can't be read" in " ".join(result.output.split())) == (0, True)
    # An explicit update goes on, and says that nothing is known of what it replaced.
    command = ["baseline", "record", "one", "--figures", given, "--baselines", folder]
    assert runner.invoke(app, command).exit_code == 2
    result = runner.invoke(app, [*command, "--update"])
    assert (result.exit_code, "what it had otherwise is not known" in result.output) == (0, True)
    assert read_baseline("one", path.parent).figures["kl"].value == 3.0


def test_a_changed_file_is_found_by_its_hash(tmp_path: Path) -> None:
    record_run("one", port(tmp_path), folder=tmp_path)
    file = tmp_path / "one" / "reference.h5"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CaptureError, match="was changed or damaged since"):
        read_baseline("one", tmp_path)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a" * 101, "<b>"])
def test_names_that_could_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be the name of a baseline"):
        read_baseline(name, tmp_path)


@pytest.mark.parametrize("update", [False, True])
def test_a_folder_that_is_no_baseline_is_left_alone(tmp_path: Path, update: bool) -> None:
    own = tmp_path / "kept" / "models" / "weights"
    own.parent.mkdir(parents=True)
    own.touch()
    with pytest.raises(UsageError, match=r"is there and is no baseline: it has no baseline\.json"):
        record_figures("models", figures(tmp_path), folder=tmp_path / "kept", update=update)
    assert own.exists()


def test_hidden_folders_are_no_baselines(tmp_path: Path) -> None:
    path = kept(tmp_path)
    path.rename(path.with_name(".one"))
    assert listed(path.parent) == []
    with pytest.raises(UsageError, match="there is: none"):
        read_baseline("one", path.parent)


def test_a_replacement_that_fails_brings_the_former_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(tmp_path)
    before = read_baseline("one", path.parent)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(UsageError, match="can't be written: No space left on device"):
        record_figures("one", figures(tmp_path, 4.0), folder=path.parent, update=True)
    assert read_baseline("one", path.parent) == before
    assert os.listdir(path.parent) == ["one"]


def test_what_fails_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replaced(tmp_path / "one"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    with replaced(tmp_path / "one") as first, replaced(tmp_path / "one") as second:
        assert first != second
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="can't be written"):
        record_figures("one", figures(tmp_path), folder=tmp_path / "file")


def test_the_name_is_stored(tmp_path: Path) -> None:
    assert json.loads((kept(tmp_path) / "baseline.json").read_text())["name"] == "one"


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    stored = read_baseline("one", kept(tmp_path).parent)
    other = write_baseline(replace(stored, command="another"))
    assert read_baseline("one", stored.folder.parent) == other
    assert isinstance(other, Baseline)
