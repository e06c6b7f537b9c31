from pathlib import Path

import pytest

from validator.bisecting.identity import capture_identity, content_of, versions
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run

TARGET = """
import os, torch, beside

def reference():
    from package.inner import built
    import missing
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    files = {
        "port.py": TARGET,
        "beside.py": "import further",
        "further.py": "",
        "unused.py": "",
        "package/__init__.py": "",
        "package/inner.py": "from . import other",
        "package/other.py": "this is no Python",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "port.py"


def test_modules_that_a_target_imports_from_its_folder_belong_to_it(target: Path) -> None:
    names = [name.removeprefix("content of ") for name in content_of(target)]
    assert names == [
        *("target's content", "beside.py", "further.py"),
        *("package/__init__.py", "package/inner.py", "package/other.py"),
    ]


@pytest.mark.parametrize(
    ("changed", "is_another"),
    [("port.py", True), ("further.py", True), ("package/inner.py", True), ("unused.py", False)],
)
def test_a_change_shows_where_the_target_imports_it(changed: str, is_another: bool, target: Path) -> None:
    before = content_of(target)
    file = target.parent / changed
    file.write_text(file.read_text() + "\n# changed")
    assert (content_of(target) != before) is is_another


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("from kernels import rope", "kernels/rope.py"),
        ("import kernels.deep.rope as rope", "kernels/deep/rope.py"),
        ("try:\n    from .base import x\nexcept ImportError:\n    from base import x", "base.py"),
        ("import importlib\nimportlib.import_module('later')", "later.py"),
        ("from importlib import import_module as im\n__import__('later')", "later.py"),
        ("from package.inner import *", "package/deeper.py"),
        ("import torch", "torch/__init__.py"),
        (f"from {'.' * 90}far import x\nimport later", "later.py"),
    ],
    ids=[
        "namespace",
        "nested namespace",
        "relative first",
        "by name",
        "dunder",
        "two dots",
        "shadow",
        "too many dots",
    ],
)
def test_however_a_module_is_imported_a_change_in_it_shows(line: str, file: str, tmp_path: Path) -> None:
    for name in ("package/__init__.py", "package/inner/__init__.py", file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("from ..deeper import x" if "inner" in name else "x = 1")
    target = tmp_path / "port.py"
    target.write_text(line)
    before = content_of(target)
    (tmp_path / file).write_text("x = 2")
    assert content_of(target) != before


def test_a_folder_named_like_an_installed_package_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    target = tmp_path / "port.py"
    target.write_text("import transformers.models.llama")
    assert list(content_of(target)) == ["target's content"]


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b, port")
    (tmp_path / "b.py").write_text("import a")
    target = tmp_path / "port.py"
    target.write_text("import a")
    assert list(content_of(target)) == ["target's content", "content of a.py", "content of b.py"]


def test_modules_of_other_folders_belong_to_a_target_where_they_are_named(
    target: Path, tmp_path: Path
) -> None:
    beside = tmp_path / "elsewhere"
    beside.mkdir()
    (beside / "missing.py").write_text("x = 1")
    before = content_of(target, beside=(beside,))
    (beside / "missing.py").write_text("x = 2")
    assert content_of(target, beside=(beside,)) != before
    assert content_of(target) == content_of(target)


def test_small_files_of_a_checkpoint_are_read_and_of_large_ones_size_and_time_are_enough(
    tmp_path: Path,
) -> None:
    seen = []
    for small, large in ((b"1", b"0" * (1 << 21)), (b"2", b"0" * (1 << 21)), (b"2", b"0" * (1 << 21 | 1))):
        (tmp_path / "config.json").write_bytes(small)
        (tmp_path / "model.safetensors").write_bytes(large)
        seen.append(content_of(tmp_path)["target's content"])
    assert len(set(seen)) == 3


def test_software_that_is_there_has_a_version() -> None:
    assert {"Python", "torch", "numpy"} <= versions().keys()


def test_two_captures_of_one_run_are_told_apart(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    seen = set()
    for name in ("a", "b", "b"):
        if not (tmp_path / name).exists():
            capture_run(lambda: model(torch.ones(1, 2)), model, tmp_path / name, proof=False)
        seen.add(capture_identity(open_capture(tmp_path / name)))
    assert len(seen) == 2
