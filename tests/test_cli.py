import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console
from typer.testing import CliRunner

from validator import cli
from validator.checks.findings import Arm, Check, Evidence, Finding, Outcome, Verdict
from validator.errors import CaptureError, TargetError, UsageError
from validator.report.json_report import schema
from validator.report.result import Result
from validator.terminal import progress_bars

FINDING = Finding(
    module="model.layers.0.mlp",
    candidate_module="model.layers.0.mlp",
    check=Check.FUNCTION,
    verdict=Verdict.DIVERGENT,
    arm=Arm.MAX,
    summary="One element is outside the band.",
    order=1,
    evidence=Evidence(max_over_band=2.0),
)


def outcome(verdict: Verdict) -> Outcome:
    return Outcome(
        verdict=verdict,
        findings=(FINDING,) if verdict is Verdict.DIVERGENT else (),
        judgements=(),
        why_inconclusive=("nothing was compared",) if verdict is Verdict.INCONCLUSIVE else (),
    )


class Api(types.ModuleType):
    """Stands in for `validator.api`: records its arguments, and does what a test says."""

    def __init__(self) -> None:
        super().__init__("validator.api")
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.work: Callable[[], Any] = lambda: Result(outcome(Verdict.ALIGNED))

    def check_target(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.work()

    def capture_target(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        self.work()
        return args[2]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    fake = Api()
    monkeypatch.setitem(sys.modules, "validator.api", fake)
    return fake


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def raising(error: BaseException) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.ALIGNED, 0),
        (Verdict.DIVERGENT, 1),
        (Verdict.UNDECLARED_PRECISION, 1),
        (Verdict.INCONCLUSIVE, 3),
    ],
)
def test_check_exits_with_the_code_of_the_verdict_and_prints_the_result(
    api: Api, verdict: Verdict, code: int
) -> None:
    api.work = lambda: Result(outcome(verdict))
    result = run("check", "port.py")
    assert result.exit_code == code
    assert result.stdout.startswith(verdict.replace("_", " ") + ":")
    assert result.stderr == ""


def test_check_passes_every_option_on(api: Api, tmp_path: Path) -> None:
    options = [
        "--nproc",
        "4",
        "--device",
        "cpu",
        "--dtype",
        "bfloat16",
        "--tp",
        "2",
        "--recipe",
        "eager",
        "--timeout",
        "9.5",
    ]
    modules = ["--include", "a.*", "--include", "b", "--exclude", "c", "--plant", "attn-scale:layer=3"]
    run("check", "port.py", *options, *modules, "--capture", "cand", "--keep", tmp_path)
    (args, kwargs), *others = api.calls
    assert others == []
    assert args == ("port.py",)
    progress = kwargs.pop("progress")
    assert kwargs == {
        "nproc": 4,
        "device": "cpu",
        "dtype": "bfloat16",
        "tp": 2,
        "recipe": "eager",
        "include": ("a.*", "b"),
        "exclude": ("c",),
        "capture": Path("cand"),
        "keep": tmp_path,
        "timeout_s": 9.5,
        "plant": "attn-scale:layer=3",
        "level": "full",
        "repro": None,
        "profiles": False,
    }
    assert callable(progress)


def test_a_page_is_written_with_what_each_edge_looks_like(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = run("check", "port.py", "--html", path)
    assert result.exit_code == 0
    assert api.calls[0][1]["profiles"] is True
    assert "<h1" in path.read_text(encoding="utf-8")
    assert result.stdout.startswith("aligned:")


def test_a_page_that_can_not_be_written_is_found_before_the_work(api: Api, tmp_path: Path) -> None:
    result = run("check", "port.py", "--html", tmp_path / "nowhere" / "page.html")
    assert result.exit_code == 2
    assert api.calls == []
    assert result.stderr.startswith("error: --html can't write ")


def test_a_users_mistake_is_one_message_and_exit_2(api: Api) -> None:
    api.work = raising(TargetError("port.py has no function 'reference'; add one"))
    result = run("check", "port.py")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: port.py has no function 'reference'; add one\n"


def test_a_users_mistake_is_written_as_json_too(api: Api, tmp_path: Path) -> None:
    api.work = raising(CaptureError("rank1.h5 is truncated"))
    path = tmp_path / "result.json"
    assert run("check", "port.py", "--json", path).exit_code == 2
    document = json.loads(path.read_text())
    assert document == {"schema": 1, "error": {"kind": "capture", "message": "rank1.h5 is truncated"}}


def test_json_goes_to_a_file_beside_the_text(api: Api, tmp_path: Path) -> None:
    api.work = lambda: Result(outcome(Verdict.DIVERGENT))
    path = tmp_path / "result.json"
    result = run("check", "port.py", "--json", path)
    assert result.stdout.startswith("divergent: first at model.layers.0.mlp\n")
    document = json.loads(path.read_text())
    jsonschema.validate(document, schema())
    assert document["first_divergence"]["module"] == "model.layers.0.mlp"


def test_csv_and_markdown_go_to_files_beside_the_text(api: Api, tmp_path: Path) -> None:
    api.work = lambda: Result(outcome(Verdict.DIVERGENT))
    files = tmp_path / "edges.csv", tmp_path / "summary.md"
    result = run("check", "port.py", "--csv", files[0], "--markdown", files[1])
    assert result.exit_code == 1
    assert result.stdout.startswith("divergent: ")
    assert files[0].read_text().startswith("module,candidate_module,check,verdict,")
    assert files[1].read_text().startswith("### divergent: first at model.layers.0.mlp\n")


def test_two_results_do_not_go_to_one_file(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    result = run("check", "port.py", "--csv", path, "--markdown", path)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --markdown {str(path)!r} would overwrite what --csv writes; name another file\n"
    )
    assert api.calls == []


@pytest.mark.parametrize("option", ["--csv", "--markdown"])
def test_no_file_of_a_result_overwrites_the_target(api: Api, tmp_path: Path, option: str) -> None:
    target = tmp_path / "port.py"
    target.write_text("def reference(): ...")
    result = run("check", target, option, target)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {option} ")
    assert target.read_text() == "def reference(): ..."
    assert api.calls == []


@pytest.mark.parametrize("option", ["--json", "--html", "--csv", "--markdown"])
@pytest.mark.parametrize("command", ["check", "bisect"])
def test_no_file_of_a_result_overwrites_the_capture_that_is_judged(
    api: Api, tmp_path: Path, command: str, option: str
) -> None:
    stored = tmp_path / "run" / "rank0.h5"
    stored.parent.mkdir()
    stored.write_text("mine")
    result = run(command, "port.py", "--capture", stored.parent, option, stored)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {option} {str(stored)!r} would overwrite a file of the capture; name another file\n"
    )
    assert stored.read_text() == "mine"
    assert api.calls == []


def test_json_on_stdout_is_alone_there_even_if_the_target_prints(
    api: Api, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> Result:
        print("loading weights")  # noqa: T201
        os.write(1, b"a rank prints\n")
        return Result(outcome(Verdict.ALIGNED))

    api.work = work
    with pytest.raises(SystemExit) as left:
        cli.main(["check", "port.py", "--json", "-"])
    assert left.value.code == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["verdict"] == "aligned"
    assert "loading weights" in err
    assert "a rank prints" in err


def test_an_error_as_json_on_stdout_leaves_the_message_on_stderr(api: Api) -> None:
    api.work = raising(UsageError("--dtype 'bf17' is not a dtype"))
    result = run("check", "port.py", "--json", "-")
    assert json.loads(result.stdout)["error"] == {
        "kind": "usage",
        "message": "--dtype 'bf17' is not a dtype",
    }
    assert result.stderr == "error: --dtype 'bf17' is not a dtype\n"


def test_a_json_file_that_can_not_be_written_is_found_before_the_work(api: Api, tmp_path: Path) -> None:
    result = run("check", "port.py", "--json", tmp_path / "nowhere" / "result.json")
    assert result.exit_code == 2
    assert api.calls == []
    assert result.stderr.startswith("error: --json can't write ")
    assert "nowhere" in result.stderr


def test_json_never_overwrites_the_target(api: Api, tmp_path: Path) -> None:
    target = tmp_path / "port.py"
    target.write_text("def reference(): ...")
    result = run("check", target, "--json", tmp_path / "." / "port.py")
    assert result.exit_code == 2
    assert "would overwrite the target" in result.stderr
    assert target.read_text() == "def reference(): ..."


def test_an_older_result_does_not_survive_a_run_that_fails(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"schema": 1, "verdict": "aligned"}')
    api.work = raising(RuntimeError("a bug"))
    assert run("check", "port.py", "--json", path).exit_code == 70
    assert path.read_text() == ""


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), BrokenPipeError(32, "a bug")], ids=lambda e: type(e).__name__
)
def test_a_bug_of_ours_keeps_its_traceback_and_is_no_verdict(api: Api, error: Exception) -> None:
    api.work = raising(error)
    result = run("check", "port.py")
    assert result.exit_code == 70
    assert "Traceback (most recent call last)" in result.stderr
    assert "a bug" in result.stderr
    assert result.stdout == ""


def test_an_interrupt_exits_with_130(api: Api) -> None:
    api.work = raising(KeyboardInterrupt())
    assert run("check", "port.py").exit_code == 130


def test_a_target_that_exits_does_not_choose_our_exit_code(api: Api) -> None:
    api.work = raising(SystemExit(0))
    result = run("check", "port.py")
    assert result.exit_code == 2
    assert result.stderr == "error: the target called sys.exit(0); remove that call\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check",),
        ("check", "port.py", "--nproc", "0"),
        ("check", "port.py", "--nproc", "two"),
        ("check", "port.py", "--colour"),
        ("capture", "port.py"),
        ("bisekt", "port.py"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_exits_with_2_and_prints_nothing_on_stdout(
    api: Api, arguments: tuple[str, ...]
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr
    assert api.calls == []


@pytest.mark.parametrize(
    ("target", "source", "side"),
    [
        ("port.py", "port.py", "candidate"),
        ("port.py:candidate", "port.py", "candidate"),
        ("port.py:reference", "port.py", "reference"),
        ("a:b/port.py", "a:b/port.py", "candidate"),
        ("a:b/port.py:reference", "a:b/port.py", "reference"),
    ],
)
def test_capture_takes_the_side_from_the_targets_end(api: Api, target: str, source: str, side: str) -> None:
    result = run("capture", target, "-o", "cand", "--nproc", "2", "--overwrite", "--no-proof")
    assert result.exit_code == 0
    assert result.stdout == "cand\n"
    (args, kwargs), *_ = api.calls
    assert args == (source, side, Path("cand"))
    assert (kwargs["nproc"], kwargs["overwrite"], kwargs["proof"]) == (2, True, False)


def test_capture_passes_what_noise_and_faults_need_on(api: Api) -> None:
    options = ["--noise", "12", "--dtype", "float16", "--recipe", "fused", "--plant", "rope-sign"]
    assert run("capture", "port.py:reference", "-o", "ref.h5", *options).exit_code == 0
    (args, kwargs), *_ = api.calls
    assert args == ("port.py", "reference", Path("ref.h5"))
    assert {name: kwargs[name] for name in ("noise", "dtype", "recipe", "plant")} == {
        "noise": 12,
        "dtype": "float16",
        "recipe": "fused",
        "plant": "rope-sign",
    }


def test_a_path_that_ends_like_a_side_is_a_path_if_it_exists(api: Api, tmp_path: Path) -> None:
    folder = tmp_path / "model:reference"
    folder.mkdir()
    run("capture", folder, "-o", "cand")
    assert api.calls[0][0][:2] == (str(folder), "candidate")


def test_an_unknown_side_is_an_error_that_names_both(api: Api, tmp_path: Path) -> None:
    target = tmp_path / "port.py"
    target.touch()
    result = run("capture", f"{target}:candidat", "-o", "cand")
    assert result.exit_code == 2
    assert "no side 'candidat'" in result.stderr
    assert f"write {target}:candidate or {target}:reference" in result.stderr
    assert api.calls == []


@pytest.mark.parametrize(("succeeds", "code"), [(True, 0), (False, 70)], ids=["found", "missed"])
def test_demo_runs_on_the_console_and_fails_unless_it_finds_what_it_planted(
    monkeypatch: pytest.MonkeyPatch, succeeds: bool, code: int
) -> None:
    def run_demo(console: Console) -> bool:
        console.print("healthy, then faulty")
        return succeeds

    fake = types.ModuleType("validator.demo")
    fake.run_demo = run_demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "validator.demo", fake)
    result = run("demo")
    assert (result.exit_code, result.stdout) == (code, "healthy, then faulty\n")
    assert ("did not find what it planted" in result.stderr) == (not succeeds)


def test_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.metadata, "version", lambda name: {"accuracy-validator": "1.2.3"}[name])
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, "validator 1.2.3\n")


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"]], ids=" ".join)
def test_help_needs_neither_torch_nor_pandas(arguments: list[str]) -> None:
    code = f"""
import sys
from validator.cli import main
try:
    main({arguments!r})
except SystemExit as left:
    assert not left.code, left.code
print(sorted({{"torch", "numpy", "pandas", "h5py", "scipy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Usage: validator" in done.stdout


def test_a_reader_that_has_gone_does_not_change_the_exit_code() -> None:
    code = "import sys; from validator.terminal import write_stdout; write_stdout('x' * 100_000); sys.exit(3)"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (3, "")


def test_bars_are_drawn_on_terminals_only(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as progress:
        progress("[red]capture", 1, 2)
        progress("[red]capture", 2, 2)
        progress("checks", 1, 0)
    assert capfd.readouterr() == ("", "")
