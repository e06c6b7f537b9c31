import tomllib
from pathlib import Path

import pytest
import yaml

from validator.errors import UsageError
from validator.testing.scaffold import FILES, scaffold
from validator.testing.settings import configured

TABLE = {"target": "port.py"}


def table(folder: Path) -> object:
    return tomllib.loads((folder / "pyproject.toml").read_bytes().decode())["tool"]["validator"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("name", "text", "is_installed"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n', False),
        ("pyproject.toml", '[build-system]\nrequires = ["x"]\n', True),
        ("setup.py", "", True),
        ("pyproject.toml", "[tool.ruff]\n", False),
        ("README.md", "", False),
    ],
    ids=["project", "build-system", "setup", "tools", "none"],
)
def test_the_job_installs_the_repositorys_own_package_where_it_says_how_it_is_built(
    tmp_path: Path, name: str, text: str, is_installed: bool
) -> None:
    (tmp_path / name).write_text(text)
    scaffold(tmp_path)
    job = yaml.safe_load((tmp_path / FILES["validator.yml"]).read_text())
    (install,) = [step["run"] for step in job["jobs"]["port"]["steps"] if step.get("name") == "Install"]
    first, second = install.strip().splitlines()
    assert first == 'python -m pip install "accuracy-validator[hf]"'
    assert second.startswith("python -m pip install . " if is_installed else "# python -m pip install . ")


def test_an_empty_folder_gets_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "repo"
    written = scaffold(folder)
    assert {file.path: file.how for file in written} == dict.fromkeys(
        ["pyproject.toml", *FILES.values()], "made"
    )
    assert set(files(folder)) == {file.path for file in written}
    assert table(folder) == TABLE
    assert configured(folder).target == str(folder / "port.py")


@pytest.mark.parametrize(
    ("before", "gap"),
    [
        ('[project]\nname = "x"\n', "\n"),
        ('[project]\nname = "x"', "\n\n"),
        ("[tool.ruff]\r\nline-length = 90\r\n", "\r\n"),
        ("# only a comment\n", "\n"),
        ("\n", ""),
        ("", ""),
        ('[tool.other.validator]\nx = 1\n\n[[tool.mypy.overrides]]\nmodule = ["a"]\n', "\n"),
    ],
    ids=["table", "no-newline", "crlf", "comment", "blank", "empty", "array"],
)
def test_a_pyproject_keeps_its_bytes_and_gets_the_table_at_its_end(
    tmp_path: Path, before: str, gap: str
) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(before.encode())
    (written, *_) = scaffold(tmp_path)
    assert (written.path, written.how) == ("pyproject.toml", "added to")
    after = path.read_bytes().decode()
    assert after.startswith(f"{before}{gap}[tool.validator]")
    assert ("\r\n" in after) == (after.count("\n") == after.count("\r\n"))
    assert table(tmp_path) == TABLE
    old = tomllib.loads(before)
    new = tomllib.loads(after)
    del new["tool"]["validator"]
    assert {**new, "tool": new["tool"] or None} == {**old, "tool": old.get("tool")}


@pytest.mark.parametrize(
    ("text", "message"),
    [("[tool\n", "can't be read"), ("tool = {ruff = {}}\n", r"can't be added .* inline; add `validator = ")],
    ids=["broken", "inline"],
)
def test_a_pyproject_that_can_not_be_added_to_is_left_alone(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        scaffold(tmp_path)
    assert files(tmp_path) == {"pyproject.toml": text.encode()}


@pytest.mark.parametrize("path", [*FILES.values(), "pyproject.toml"])
def test_a_file_that_is_there_stops_it_before_anything_is_written(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("[tool.validator]\n")
    with pytest.raises(UsageError, match=r"there already .* nothing was written.*--force") as raised:
        scaffold(tmp_path)
    assert path in str(raised.value)
    assert files(tmp_path) == {path: b"[tool.validator]\n"}


def test_force_replaces_files_but_keeps_the_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.validator]\nnproc = 4\n")
    (tmp_path / "port.py").write_text("mine = True\n")
    written = {file.path: file.how for file in scaffold(tmp_path, force=True)}
    assert written["pyproject.toml"] == "kept"
    assert written["port.py"] == "replaced"
    assert table(tmp_path) == {"nproc": 4}
    assert "def reference" in (tmp_path / "port.py").read_text()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(UsageError, match="is a file; name a folder"):
        scaffold(tmp_path / "x")


def test_a_file_where_a_folder_has_to_be_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / ".github").touch()
    with pytest.raises(UsageError, match=r"\.github' is a file, and a folder is needed there"):
        scaffold(tmp_path, force=True)
    assert set(files(tmp_path)) == {".github"}


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "deep")
    with pytest.raises(UsageError, match=r"link.* can't be written: "):
        scaffold(tmp_path / "link")


def test_what_can_not_be_written_leaves_all_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text("mine = True\n")
    (tmp_path / "tests" / "test_port.py").mkdir(parents=True)
    with pytest.raises(
        UsageError, match=r"test_port\.py' can't be written: it is a folder; nothing was written"
    ):
        scaffold(tmp_path, force=True)
    assert files(tmp_path) == {"port.py": b"mine = True\n"}
    assert {path.name for path in tmp_path.iterdir()} == {"port.py", "tests"}


def test_every_setting_of_the_template_is_a_setting(tmp_path: Path) -> None:
    scaffold(tmp_path)
    path = tmp_path / "pyproject.toml"
    path.write_text(path.read_text().replace("\n# ", "\n"))
    found = configured(tmp_path)
    assert (found.nproc, found.dtype, found.card_counts, found.long) == (2, "bfloat16", (1, 2, 4), True)


def test_the_job_is_yaml_whose_steps_are_complete(tmp_path: Path) -> None:
    scaffold(tmp_path)
    job = yaml.safe_load((tmp_path / FILES["validator.yml"]).read_text())
    assert job[True] == ["push", "pull_request"]  # YAML 1.1 reads `on` as a boolean; GitHub does not
    (port,) = job["jobs"].values()
    assert all(("uses" in step) != ("run" in step) for step in port["steps"])
    assert port["runs-on"] == "ubuntu-latest"
