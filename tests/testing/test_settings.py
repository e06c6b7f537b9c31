from pathlib import Path
from typing import Any

import pytest

from validator.errors import UsageError
from validator.testing.settings import Settings, config_file, configured, read_settings


def read(folder: Path, **values: Any) -> Settings:
    return read_settings(Settings(), values, name=lambda key: f"--{key}", folder=folder)


def write(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_what_is_not_said_stays(tmp_path: Path) -> None:
    base = Settings(nproc=4, dtype="float16")
    assert read_settings(base, {"nproc": None, "dtype": "bfloat16"}, name=str, folder=tmp_path) == Settings(
        nproc=4, dtype="bfloat16"
    )


def test_texts_of_a_command_line_become_numbers_and_paths(tmp_path: Path) -> None:
    found = read(tmp_path, nproc="2", tp="4", card_counts="1, 2,4", reports="out")
    assert (found.nproc, found.tp, found.card_counts) == (2, 4, (1, 2, 4))
    assert found.names_card_counts
    assert not read(tmp_path, nproc="2").names_card_counts
    assert found.reports == tmp_path / "out"


def test_samples_are_a_file_or_two(tmp_path: Path) -> None:
    assert read(tmp_path, samples="scores.jsonl").samples == (tmp_path / "scores.jsonl",)
    assert read(tmp_path, samples=["a.jsonl", "b.jsonl"]).samples == (
        tmp_path / "a.jsonl",
        tmp_path / "b.jsonl",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nproc", "two"),
        ("nproc", 0),
        ("nproc", True),
        ("tp", "-1"),
        ("card_counts", "1,x"),
        ("card_counts", "2,2"),
        ("card_counts", ""),
        ("card_counts", []),
        ("card_counts", 3),
        ("samples", "a,b,c"),
        ("samples", "a,"),
        ("samples", [1]),
        ("long", "yes"),
        ("recipe", ""),
        ("target", 3),
    ],
)
def test_a_value_that_is_not_legal_is_named_with_its_place(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, **{key: value})
    assert str(raised.value).startswith(f"--{key} is {value!r}; it must be ")


def test_a_misspelt_key_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no such setting: --nprocs\. Do you mean nproc\? There are target, "
    ):
        read(tmp_path, nprocs=2)


def test_only_the_command_line_lets_baselines_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such setting"):
        read(tmp_path, update_baselines=True)


def test_paths_of_a_config_are_relative_to_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, '[tool.validator]\ntarget = "port.py"\ncard-counts = [1, 4]\n')
    below = tmp_path / "tests" / "deep"
    below.mkdir(parents=True)
    found = configured(below)
    assert found.target == str(tmp_path / "port.py")
    assert found.baselines == tmp_path / "baselines"
    assert found.card_counts == (1, 4)
    monkeypatch.chdir(tmp_path)
    assert configured(below).target == "port.py"


def test_the_nearest_config_with_a_table_of_ours_counts(tmp_path: Path) -> None:
    outer = write(tmp_path, "[tool.validator]\nnproc = 2\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    write(inner, "[tool.ruff]\n")
    assert config_file(inner) == outer
    own = write(inner, "[tool.validator]\nnproc = 3\n")
    assert config_file(inner) == own


@pytest.mark.parametrize("text", [b"# validator \xe9\n", b"[tool.validator\n"], ids=["latin-1", "toml"])
def test_a_broken_file_above_the_projects_own_is_passed_over(tmp_path: Path, text: bytes) -> None:
    outer = write(tmp_path, "[tool.validator]\nnproc = 2\n")
    middle, inner = tmp_path / "middle", tmp_path / "middle" / "inner"
    inner.mkdir(parents=True)
    (middle / "pyproject.toml").write_bytes(text)
    with pytest.raises(UsageError, match="can't be read"):
        config_file(inner)  # the project's own, seen from a folder of it
    assert config_file(inner, is_root=True) == outer
    with pytest.raises(UsageError, match="can't be read"):
        config_file(middle, is_root=True)
    write(inner, "[tool.ruff]\n")
    assert config_file(inner) == outer


def test_a_broken_config_is_a_mistake_only_where_it_speaks_of_us(tmp_path: Path) -> None:
    write(tmp_path, "[tool.other\n")
    assert config_file(tmp_path) is None
    path = write(tmp_path, "[tool.validator\n")
    with pytest.raises(UsageError, match="can't be read"):
        configured(tmp_path)
    write(tmp_path, 'tool.validator = "port.py"\n')
    with pytest.raises(UsageError, match="must be a table"):
        configured(tmp_path)
    path.unlink()
    assert configured(tmp_path).target is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(), "no target"),
        (
            Settings(target="port.py", nproc=2, dtype="bfloat16", long=True),
            "port.py, nproc 2, dtype bfloat16, long",
        ),
    ],
)
def test_settings_are_one_line(settings: Settings, text: str) -> None:
    assert str(settings) == text
