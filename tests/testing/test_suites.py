"""Suites run through a real pytest."""

from pathlib import Path
from typing import Any

import pytest

from tests.testing.test_plugin import LIGHT
from validator.content import find_suite
from validator.errors import TargetError, UsageError
from validator.testing.recorder import read_records, running
from validator.testing.records import Ending
from validator.testing.suites import run_suites, suite_path

SETTINGS = '''
import helper_beside_the_suite


def test_settings(validation):
    """What is asked for arrives."""
    settings = validation.settings
    validation.require(settings.nproc == 3, f"nproc {settings.nproc}")
    validation.require(settings.card_counts == (1, 4), f"card counts {settings.card_counts}")
    validation.require(settings.long, "long is not set")
    validation.require(settings.dtype == "float16", f"dtype {settings.dtype}")


def test_no_option_of_the_project_holds(request, pytestconfig):
    assert not pytestconfig.getini("addopts")
    assert request.config.getini("python_files") == ["test_*.py", "*_test.py"]
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return tmp_path


def run(*names: str, **options: Any) -> Any:
    return run_suites(names, options=options)


def test_a_shipped_suite_has_a_name_and_a_path_is_a_path(here: Path) -> None:
    assert suite_path("alignment") == (find_suite("alignment"), "")
    assert suite_path("alignment::test_a[x]") == (find_suite("alignment"), "::test_a[x]")
    (here / "alignment").mkdir()
    assert suite_path("alignment") == ((here / "alignment").resolve(), "")


@pytest.mark.parametrize("name", ["algnment", "", "nothing.py", "::test_a"])
def test_what_is_neither_is_refused(here: Path, name: str) -> None:
    with pytest.raises(
        UsageError, match=r"no suite .*: no such file, and the suites that ship are .*alignment"
    ):
        suite_path(name)


def test_a_file_that_is_no_python_is_refused(here: Path) -> None:
    (here / "notes.md").touch()
    with pytest.raises(UsageError, match=r"'notes\.md' is no suite"):
        suite_path("notes.md")


def test_every_way_to_end_comes_back(here: Path) -> None:
    (here / "test_light.py").write_text(LIGHT)
    summary = run("test_light.py", "test_light.py::test_passes")
    suite, single = summary.suites
    endings = {answer.id.partition("::")[2]: answer.ending for answer in suite.answers}
    assert endings == {
        "test_passes": Ending.PASSED,
        "test_fails": Ending.FAILED,
        "test_undecided": Ending.INCONCLUSIVE,
        "test_not_applicable": Ending.NOT_APPLICABLE,
        "test_mistake": Ending.COULD_NOT_RUN,
        "test_bug": Ending.COULD_NOT_RUN,
        "test_assertion": Ending.FAILED,
        "test_control": Ending.FAILED,
        "test_broken_when_taken_down": Ending.COULD_NOT_RUN,
        "test_not_ours": Ending.FAILED,
        "test_nothing_heavy_was_needed": Ending.PASSED,
        "test_looks_at_nothing": Ending.COULD_NOT_RUN,
        "test_only_measures": Ending.COULD_NOT_RUN,
        "test_known": Ending.EXPECTED_FAILURE,
        "test_known_to_crash": Ending.EXPECTED_FAILURE,
        "test_known_and_not_run": Ending.EXPECTED_FAILURE,
    }
    by_name = {answer.id.partition("::")[2]: answer for answer in suite.answers}
    fails = by_name["test_fails"]
    assert (fails.asked, fails.message, fails.module, fails.rank) == (
        "fails",
        "The cache grows.",
        "model.layers.1",
        3,
    )
    assert by_name["test_not_applicable"].message == "the port has no cache"
    assert by_name["test_looks_at_nothing"].message.startswith(
        "it passed, but compared nothing: call check()"
    )
    known = by_name["test_known"]
    assert (known.message, known.module) == ("issue 12: The cache holds the wrong keys.", "model.layers.1")
    assert by_name["test_known_to_crash"].message == "RuntimeError: planted"
    assert by_name["test_known_and_not_run"].message == "[NOTRUN] issue 13"
    assert by_name["test_broken_when_taken_down"].message == "it can't be ended"
    assert [answer.id for answer in single.answers] == ["test_light.py::test_passes"]
    assert summary.exit_code == 1


def test_settings_arrive_and_the_projects_own_options_for_pytest_do_not(here: Path) -> None:
    (here / "pyproject.toml").write_text(
        '[tool.validator]\ndtype = "float16"\nnproc = 5\n\n'
        '[tool.pytest.ini_options]\naddopts = "-k nothing_at_all"\npython_files = "none.py"\n'
    )
    folder = here / "my suites"
    folder.mkdir()
    (folder / "helper_beside_the_suite.py").touch()
    (folder / "test_mine.py").write_text(SETTINGS)
    summary = run("my suites", nproc=3, card_counts="1,4", long=True, dtype=None)
    assert summary.sentence == "The port holds: 2 tests passed."
    (first, _) = summary.suites[0].answers
    assert first.asked == "What is asked for arrives."
    assert str(summary.settings) == "no target, nproc 3, dtype float16, long"


def test_options_for_pytest_from_the_environment_change_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing_at_all --maxfail=1")
    (here / "test_a.py").write_text("def test_a(validation):\n    validation.require(True, 'x')\n")
    assert run("test_a.py").sentence == "The port holds: 1 test passed."


def test_a_pytest_that_dies_names_the_test_that_ran(here: Path) -> None:
    (here / "test_a.py").write_text(
        "import os\n\n\ndef test_a(validation):\n    validation.require(True, 'x')\n\n\n"
        "def test_b():\n    os._exit(-9 & 0xFF)\n"
    )
    summary = run("test_a.py")
    assert summary.exit_code == 2
    assert summary.sentence == "No answer: pytest ended with code 247 while test_a.py::test_b ran."
    assert [answer.ending for answer in summary.answers] == [Ending.PASSED]


def test_a_line_that_was_cut_when_pytest_died_is_left_out(here: Path) -> None:
    (here / "records").write_text('{"begins": "a"}\n{"begins": "b"}\n{"is_done": "a"}\n{"id": "b", "pa')
    documents = read_records(here / "records")
    assert len(documents) == 3
    assert running(documents) == ("b",)


def test_a_suite_that_can_not_be_collected_leaves_no_answer(here: Path) -> None:
    (here / "test_broken.py").write_text("import a_module_that_is_not_there\n")
    summary = run("test_broken.py")
    assert summary.exit_code == 2
    assert summary.sentence.startswith(
        "No answer: test_broken.py: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
    )


def test_a_bad_option_is_found_before_anything_runs(here: Path) -> None:
    (here / "test_a.py").touch()
    with pytest.raises(UsageError, match="--card-counts is 'x'"):
        run("test_a.py", card_counts="x")
    with pytest.raises(TargetError, match=r"no such target: 'nowhere.py'"):
        run("test_a.py", target="nowhere.py")


KNOWN = """
import pytest


def test_it_holds(validation):
    validation.require(True, "it holds")


@pytest.mark.xfail
def test_the_cache(validation):
    validation.fail("the cache holds the wrong keys", module="model.layers.1", rank=2)


@pytest.mark.xfail
def test_plain():
    raise RuntimeError("planted")
"""


def test_a_known_fault_is_an_expected_failure_and_the_sentence_names_it(here: Path) -> None:
    (here / "test_a.py").write_text(KNOWN)
    summary = run("test_a.py")
    _, cache, plain = summary.answers
    assert (cache.ending, cache.message, cache.rank) == (
        Ending.EXPECTED_FAILURE,
        "the cache holds the wrong keys",
        2,
    )
    assert (plain.ending, plain.message) == (Ending.EXPECTED_FAILURE, "RuntimeError: planted")
    assert summary.exit_code == 0
    assert summary.sentence == (
        "The port holds but for 2 expected failures, first 'the cache' at model.layers.1, rank 2: 1 test "
        "passed."
    )


PASSES_UNEXPECTEDLY = """

@pytest.mark.xfail(strict=True, reason="issue 12")
def test_the_mask(validation):
    validation.require(True, "it holds")
"""


def test_a_known_fault_that_is_mended_asks_for_its_marker_to_be_taken_away(here: Path) -> None:
    (here / "test_a.py").write_text(KNOWN + PASSES_UNEXPECTEDLY)
    summary = run("test_a.py")
    why = "it passed, though it is marked as an expected failure: take the marker away"
    mask = summary.answers[-1]
    assert (mask.ending, mask.message) == (Ending.COULD_NOT_RUN, why)
    assert summary.exit_code == 2
    assert summary.sentence == f"No answer: the mask: {why}."


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (
            "def test_a():\n    assert True\n",
            "the suite test_a.py compared nothing that validator knows of: its tests that passed call none "
            "of check(), baseline(), assert_aligned() or require() of `validation`.",
        ),
        ("def test_a(validation):\n    validation.figure('x', float('nan'))\n", "a: it passed, but compared"),
    ],
    ids=["plain", "figure"],
)
def test_a_suite_that_compared_nothing_is_no_answer(here: Path, test: str, reason: str) -> None:
    (here / "test_a.py").write_text(test)
    summary = run("test_a.py")
    assert summary.exit_code == 2
    assert summary.sentence.startswith(f"No answer: {reason}")


@pytest.mark.parametrize("name", ["alignment", "long-context", "determinism::test_a"])
def test_a_suite_that_ships_is_refused_at_once_without_a_target(here: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"no target is named.* Give --target FILE, in pytest --validator-t"):
        run(name)
    with pytest.raises(UsageError, match="no target is named"):
        run(str(find_suite("alignment")))


def test_what_a_test_asks_of_several_parameters_is_told_apart(here: Path) -> None:
    (here / "test_a.py").write_text(
        "import pytest\n\n\n@pytest.mark.parametrize('text', ['generated', 'read'])\n"
        'def test_a(validation, text):\n    """It is near."""\n    validation.figure(\'x\', 1)\n'
    )
    asked = [answer.asked for answer in run("test_a.py").answers]
    assert asked == ["It is near (generated)", "It is near (read)"]


def test_without_a_test_there_is_no_answer(here: Path) -> None:
    (here / "test_a.py").touch()
    summary = run("test_a.py")
    assert summary.sentence == "No answer: there is no test to run (and 1 more)."
