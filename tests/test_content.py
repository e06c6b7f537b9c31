"""Where probes, suites and baselines are found, and what a missing one says."""

from pathlib import Path

import pytest

from validator import content
from validator.content import ContentKind, content_path, find_model, find_suite, suite_names
from validator.errors import UsageError

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the package looks installed: no checkout, and its content not yet there."""
    package = tmp_path / "site-packages" / "validator"
    package.mkdir(parents=True)
    monkeypatch.setattr(content, "_PACKAGE", package)
    return package.parent


@pytest.mark.parametrize("kind", list(ContentKind))
def test_a_checkout_finds_its_own_folders(kind: ContentKind) -> None:
    assert content_path(kind, "README.md") == REPO / kind / "README.md"


def test_a_kind_may_be_given_by_its_name() -> None:
    assert content_path("suites", "README.md") == content_path(ContentKind.SUITES, "README.md")


def test_an_installed_package_finds_what_was_shipped_with_it(site_packages: Path) -> None:
    suite = site_packages / "validator" / "_shipped" / "suites" / "alignment.py"
    suite.parent.mkdir(parents=True)
    suite.touch()
    assert content_path("suites", "alignment.py") == suite


def test_another_distribution_of_the_same_name_is_not_taken_for_ours(site_packages: Path) -> None:
    (site_packages / "probes").mkdir()
    (site_packages / "probes" / "norms.py").touch()
    with pytest.raises(UsageError, match="no folder of probes"):
        content_path("probes", "norms.py")


def test_a_given_folder_goes_before_what_ships(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    assert content_path("probes", "README.md", tmp_path) == tmp_path / "README.md"


def test_a_name_missing_from_a_given_folder_is_not_looked_up_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is: nothing"):
        content_path("probes", "README.md", tmp_path)


def test_a_given_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no folder of suites: '.*/absent' does not exist"):
        content_path("suites", "alignment.py", tmp_path / "absent")


def test_a_missing_name_lists_those_that_exist(tmp_path: Path) -> None:
    for name in ["norms.py", "attention.py", ".hidden", "__pycache__"]:
        (tmp_path / name).touch()
    with pytest.raises(
        UsageError, match=r"no 'nroms.py' among the probes .* there is: attention.py, norms.py$"
    ):
        content_path("probes", "nroms.py", tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/../../secret"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").touch()
    (tmp_path / "probes" / "sub").mkdir(parents=True)
    with pytest.raises(UsageError, match="leads out of the probes"):
        content_path("probes", name, tmp_path / "probes")


def test_the_trained_model_is_found_by_its_name() -> None:
    assert find_model("tiny-dense") == REPO / "baselines" / "models" / "tiny-dense"


def test_an_unknown_model_lists_the_models() -> None:
    with pytest.raises(UsageError, match=r"no 'models/tiny-moo' .*tiny-dense"):
        find_model("tiny-moo")


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "models" / "empty").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"not a checkpoint folder: it has no config\.json"):
        find_model("empty", tmp_path)


def test_a_suite_is_found_by_its_name() -> None:
    assert "long_context" in suite_names()
    assert find_suite("long-context") == REPO / "suites" / "test_long_context.py"


def test_an_unknown_suite_lists_the_suites() -> None:
    with pytest.raises(UsageError, match=r"no suite 'test_alignment': .* that ship are alignment, "):
        find_suite("test_alignment")
