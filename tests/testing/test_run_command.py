"""`validator run` and `validator init` as commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from validator import cli
from validator.errors import UsageError
from validator.testing import suites
from validator.testing.answers import Answer, Suite, Summary
from validator.testing.records import Ending
from validator.testing.settings import Settings


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def ended(*endings: Ending, code: int = 0) -> Summary:
    answers = tuple(Answer(id="t", asked="Does it hold?", ending=ending, compared=1) for ending in endings)
    return Summary(
        settings=Settings(target="port.py"),
        suites=(Suite(name="alignment", path="", answers=answers),),
        exit_code_of_pytest=code,
    )


class Runs:
    """Stands in for running suites: records what it is asked, and ends as a test says."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []
        self.work: Callable[[], Summary] = lambda: ended(Ending.PASSED)

    def __call__(self, names: Any, **options: Any) -> Summary:
        self.calls.append((names, options))
        return self.work()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    fake = Runs()
    monkeypatch.setattr(suites, "run_suites", fake)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_port.py").touch()
    return fake


@pytest.mark.parametrize(
    ("ending", "code"),
    [(Ending.PASSED, 0), (Ending.FAILED, 1), (Ending.COULD_NOT_RUN, 2), (Ending.INCONCLUSIVE, 3)],
)
def test_run_exits_with_the_code_of_the_verdict_and_prints_the_summary(
    runs: Runs, ending: Ending, code: int
) -> None:
    runs.work = lambda: ended(ending)
    result = run("run", "test_port.py")
    assert result.exit_code == code
    assert "Does it hold?" in result.stdout
    sentence = ["The port holds", "The port does not hold", "No answer", "Undecided"][code]
    assert f"\n{sentence}: " in result.stdout
    assert result.stderr == ""


def test_run_passes_every_option_on(runs: Runs, tmp_path: Path) -> None:
    options = ["--target", "port.py", "--nproc", "4", "--device", "cpu", "--dtype", "bfloat16", "--tp", "2"]
    more = [
        "--recipe",
        "eager",
        "--card-counts",
        "1,2",
        "--baselines",
        "b",
        "--reports",
        "r",
        "--samples",
        "s",
    ]
    result = run("run", "test_port.py", *options, *more, "--long", "--junit", tmp_path / "j.xml")
    assert result.exit_code == 0, result.output
    ((names, kwargs),) = runs.calls
    assert names == ["test_port.py"]
    assert kwargs["junit"] == tmp_path / "j.xml"
    assert kwargs["options"] == {
        "target": "port.py",
        "nproc": 4,
        "device": "cpu",
        "dtype": "bfloat16",
        "tp": 2,
        "recipe": "eager",
        "baselines": Path("b"),
        "reports": Path("r"),
        "card_counts": "1,2",
        "samples": "s",
        "long": True,
    }


def test_the_summary_goes_to_files_as_json_and_markdown(runs: Runs, tmp_path: Path) -> None:
    result = run("run", "test_port.py", "--json", "r.json", "--markdown", "r.md")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "passed"
    assert (tmp_path / "r.md").read_text().startswith("## The port holds: 1 test passed.\n")
    assert "The port holds" in result.stdout


def test_json_on_stdout_is_alone_there(runs: Runs) -> None:
    assert json.loads(run("run", "test_port.py", "--json", "-").stdout)["verdict"] == "passed"


def test_a_mistake_is_one_message_and_exit_2(runs: Runs) -> None:
    def work() -> Summary:
        raise UsageError("nproc in pyproject.toml is 'x'")

    runs.work = work
    result = run("run", "test_port.py", "--json", "-")
    assert result.exit_code == 2
    assert result.stderr == "error: nproc in pyproject.toml is 'x'\n"
    assert json.loads(result.stdout)["error"]["kind"] == "usage"


def test_an_unknown_suite_lists_those_that_ship_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("run", "alinment", "--json", "-")
    assert result.exit_code == 2
    message = "no suite 'alinment': no such file, and the suites that ship are "
    assert result.stderr.startswith(f"error: {message}alignment, ")
    assert json.loads(result.stdout)["error"]["message"].startswith(message)


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown"])
def test_no_result_takes_the_place_of_a_suite(runs: Runs, tmp_path: Path, option: str) -> None:
    (tmp_path / "test_port.py").write_text("def test_a(): ...\n")
    result = run("run", "test_port.py", option, "test_port.py")
    assert result.exit_code == 2
    assert "would overwrite the suite test_port.py" in result.stderr
    assert (tmp_path / "test_port.py").read_text() == "def test_a(): ...\n"


def test_a_pytest_that_breaks_inside_is_a_bug_and_no_verdict(runs: Runs) -> None:
    runs.work = lambda: ended(Ending.PASSED, code=3)
    assert run("run", "test_port.py").exit_code == 70


def test_run_of_a_suite_that_ships_without_a_target_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("run", "alignment")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "error: no target is named, so there is nothing to test. Give --target FILE, "
    )


def test_run_without_a_suite_says_what_to_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("run")
    assert result.exit_code == 2
    assert "name a suite to run" in result.stderr


def test_init_lists_what_it_made_and_what_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("init", "repo")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["pyproject.toml", "made"]
    assert "next: cd repo && pytest, then put your model and your port into port.py" in lines
    again = run("init", "repo")
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr.startswith("error: port.py, tests/test_port.py, ")
    forced = run("init", "repo", "--force")
    assert forced.exit_code == 0
    assert forced.stdout.splitlines()[1].split() == ["port.py", "replaced"]
