"""What is built, what it exports, and what its documents point to."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import validator

REPO = Path(__file__).resolve().parents[1]
CONTENT = ["probes", "suites", "baselines", "examples"]
MODEL_FILES = ["config.json", "model.safetensors", "provenance.json"]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPO)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="module")
def wheel_names(built: Path) -> list[str]:
    (path,) = built.glob("accuracy_validator-*.whl")
    with zipfile.ZipFile(path) as wheel:
        return wheel.namelist()


@pytest.fixture(scope="module")
def sdist_names(built: Path) -> list[str]:
    """Names in the sdist, without the folder that holds all of them."""
    (path,) = built.glob("accuracy_validator-*.tar.gz")
    with tarfile.open(path) as sdist:
        return [name.partition("/")[2] for name in sdist.getnames()]


def test_the_wheel_has_one_top_level_name(wheel_names: list[str]) -> None:
    top = {name.partition("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"validator"}


def test_the_wheel_has_every_file_of_the_package(wheel_names: list[str]) -> None:
    files = (path for path in (REPO / "validator").rglob("*") if path.is_file())
    sources = {path.relative_to(REPO).as_posix() for path in files if "__pycache__" not in path.parts}
    assert sources <= set(wheel_names)
    assert {"validator/py.typed", "validator/testing/templates/validator.yml"} <= sources


@pytest.mark.parametrize("kind", CONTENT)
def test_the_wheel_ships_all_content_and_nothing_else(wheel_names: list[str], kind: str) -> None:
    prefix = f"validator/_shipped/{kind}/"
    assert {name.removeprefix(prefix) for name in wheel_names if name.startswith(prefix)} == _content_files(
        kind
    )


@pytest.mark.parametrize("kind", CONTENT)
def test_the_sdist_has_all_content(sdist_names: list[str], kind: str) -> None:
    assert {f"{kind}/{name}" for name in _content_files(kind)} <= set(sdist_names)


@pytest.mark.parametrize("file", MODEL_FILES)
@pytest.mark.parametrize("model", ["tiny-dense", "tiny-moe"])
def test_the_trained_models_are_in_wheel_and_sdist(
    wheel_names: list[str], sdist_names: list[str], model: str, file: str
) -> None:
    assert f"validator/_shipped/baselines/models/{model}/{file}" in wheel_names
    assert f"baselines/models/{model}/{file}" in sdist_names


@pytest.mark.parametrize("file", ["LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt"])
def test_the_sdist_is_enough_to_work_on(sdist_names: list[str], file: str) -> None:
    assert file in sdist_names


@pytest.mark.parametrize("kind", CONTENT)
def test_content_is_not_a_package(kind: str) -> None:
    assert not list((REPO / kind).rglob("__init__.py"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_relative_link_leads_to_a_file(document: str) -> None:
    path = REPO / document
    targets = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert missing == []


def test_the_public_names_are_these() -> None:
    assert sorted(validator.__all__) == [
        "CacheScale",
        "Recipe",
        "ValidatorError",
        "__version__",
        "capture",
        "check",
        "compare",
        "open_capture",
        "streamed",
    ]


@pytest.mark.parametrize("name", validator.__all__)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(validator, name) is not None
    assert name in dir(validator)


def test_an_unknown_name_is_an_attribute_error_that_shows_it() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'chekc'"):
        getattr(validator, "chekc")  # noqa: B009  (spelled as an attribute, mypy would reject it)


@pytest.mark.parametrize("module", ["validator", "validator.errors", "validator.content"])
def test_importing_loads_no_heavy_package(module: str) -> None:
    heavy = ["torch", "numpy", "transformers", "pandas", "h5py"]
    program = f"import sys, {module}; print(*[name for name in {heavy} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPO, check=True
    )
    assert run.stdout.split() == []


def _content_files(kind: str) -> set[str]:
    folder = REPO / kind
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}
