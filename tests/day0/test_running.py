"""Day 0: stages in their order, until one does not pass; what passed is remembered."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.baselines.test_runs import port
from validator.baselines.recording import record_figures
from validator.checks.findings import Check, Unchecked, Verdict
from validator.content import find_suite
from validator.day0 import stages, state
from validator.day0.records import Day0, StageResult
from validator.day0.running import run_day0
from validator.day0.speed import Speed
from validator.day0.stages import STAGES, Context, Stage
from validator.errors import LaunchError, TargetError, UsageError
from validator.inventory import Inventory, model_inventory
from validator.testing.answers import Answer, Suite, Summary
from validator.testing.records import Ending
from validator.testing.settings import Settings

Run = Callable[[Context, Stage], StageResult]
# Those of one forward pass; the others run suites.
FORWARD = tuple(stage for stage in STAGES if stage.name in ("inventory", "parameters", "layers", "speed"))


def stage(name: str, ending: Ending, ran: list[str], summary: str = "found") -> Stage:
    """Return a stage that ends so, and tells that it ran."""

    def run(context: Context, own: Stage) -> StageResult:
        ran.append(name)
        return own.ended(ending, summary)

    return Stage(name=name, asked="?", run=run)


def day0(folder: Path, *asked: Stage, **options: object) -> Day0:
    source = folder / "port.py"
    if not source.exists():
        source.write_text("")
    return run_day0(str(source), folder=folder / "out", stages=asked, **options)  # type: ignore[arg-type]


def test_it_stops_at_the_first_stage_that_fails_and_says_what_was_not_reached(tmp_path: Path) -> None:
    ran: list[str] = []
    asked = [stage(*each, ran) for each in (("a", Ending.PASSED), ("b", Ending.FAILED), ("c", Ending.PASSED))]
    answer = day0(tmp_path, *asked)
    assert ran == ["a", "b"]
    assert (answer.exit_code, answer.left) == (1, ("c",))
    assert answer.sentence.endswith("port.py is not ready: the stage 'b' fails. found")


def test_it_goes_on_from_the_stage_that_failed_and_a_restart_forgets(tmp_path: Path) -> None:
    ran: list[str] = []
    day0(tmp_path, stage("a", Ending.PASSED, ran), stage("b", Ending.FAILED, ran))
    answer = day0(tmp_path, stage("a", Ending.PASSED, ran), stage("b", Ending.PASSED, ran))
    assert ran == ["a", "b", "b"]
    assert [each.remembered for each in answer.stages] == [True, False]
    assert (answer.exit_code, answer.ending) == (0, Ending.PASSED)
    day0(tmp_path, stage("a", Ending.PASSED, ran), fresh=True)
    assert ran == ["a", "b", "b", "a"]


@pytest.mark.parametrize(
    "what", ["target", "module of here", "baseline", "machine", "configuration", "options", "variable"]
)
def test_what_was_found_of_something_else_is_not_remembered(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "port.py").write_text("import kernels")
    (tmp_path / "kernels.py").write_text("x = 1")
    day0(tmp_path, stage("a", Ending.PASSED, ran))
    options = {}
    if what == "target":
        (tmp_path / "port.py").write_text("x = 1")
    elif what == "module of here":
        (tmp_path / "kernels.py").write_text("x = 2")
    elif what == "baseline":
        (tmp_path / "baselines" / "port").mkdir(parents=True)
        (tmp_path / "baselines" / "port" / "candidate.h5").write_text("")
    elif what == "machine":
        described = {"hardware": "another", "software": {}, "determinism": {}}
        monkeypatch.setattr(state, "describe_process", lambda world_size: described)
    elif what == "configuration":
        (tmp_path / "pyproject.toml").write_text('[tool.validator]\ndtype = "float16"\n')
    elif what == "variable":
        monkeypatch.setenv("SCALE", "1.5")
    else:
        options = {"options": {"nproc": 2}}
    day0(tmp_path, stage("a", Ending.PASSED, ran), **options)
    assert ran == ["a", "a"]


def test_no_variable_of_a_shell_a_terminal_or_a_job_is_part_of_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    day0(tmp_path, stage("a", Ending.PASSED, ran))
    for name in (
        "OLDPWD",
        "SHLVL",
        "_",
        "TERM",
        "COLUMNS",
        "SSH_CLIENT",
        "DISPLAY",
        "SLURM_JOB_ID",
        "GITHUB_RUN_ID",
    ):
        monkeypatch.setenv(name, "other")
    day0(tmp_path, stage("a", Ending.PASSED, ran))
    assert ran == ["a"]


def test_a_variable_that_is_gone_is_a_change_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setenv("SCALE", "1.5")
    day0(tmp_path, stage("a", Ending.PASSED, ran))
    monkeypatch.delenv("SCALE")
    day0(tmp_path, stage("a", Ending.PASSED, ran))
    assert ran == ["a", "a"]


def test_what_is_remembered_says_when_it_ran(tmp_path: Path) -> None:
    day0(tmp_path, stage("a", Ending.PASSED, []))
    answer = day0(tmp_path, stage("a", Ending.PASSED, []))
    ran = answer.stages[0].ran
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", ran)
    assert f"on {ran}; remembered from an earlier run" in Path(answer.page).read_text()


def test_only_stages_that_passed_are_counted_and_the_others_named(tmp_path: Path) -> None:
    both = (stage("a", Ending.PASSED, []), stage("b", Ending.NOT_APPLICABLE, []))
    assert day0(tmp_path, *both).sentence.endswith("is ready: 1 stage passed, not applicable: b.")
    undecided = day0(tmp_path, both[1], fresh=True)
    assert (undecided.exit_code, undecided.sentence.partition(" ")[2]) == (
        3,
        "is left undecided: no stage applies to it.",
    )


def test_every_stage_runs_with_the_settings_of_the_project_and_what_is_given_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.validator]\nnproc = 2\ndtype = "float16"\ncard_counts = [1, 4]\n'
    )
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(stages, "run_suites", lambda names, options: noted(asked, options, suites()))
    monkeypatch.setattr(stages, "check_target", lambda source, **options: noted(asked, options, result()))
    monkeypatch.setattr(stages, "inventory_of", lambda source, **options: noted(asked, options, found()))
    monkeypatch.setattr(stages, "measure_speed", lambda source, **options: noted(asked, options, fast()))
    (tmp_path / "port.py").write_text("")
    answer = run_day0("port.py", folder=tmp_path / "out", options={"dtype": "bfloat16", "nproc": None})
    assert answer.exit_code == 0, answer.sentence
    assert len(asked) == 6
    assert {(options["nproc"], options["dtype"]) for options in asked} == {(2, "bfloat16")}
    assert [options["card_counts"] for options in asked if "card_counts" in options] == ["1,4"] * 3


def test_card_counts_that_nobody_named_are_left_to_the_suites(tmp_path: Path) -> None:
    asked: list[str | None] = []

    def run(context: Context, own: Stage) -> StageResult:
        asked.append(context.run_options()["card_counts"])
        return own.ended(Ending.PASSED, "")

    day0(tmp_path, Stage(name="a", asked="?", run=run))
    day0(tmp_path, Stage(name="a", asked="?", run=run), card_counts="1,2")
    assert asked == [None, "1,2"]


@pytest.mark.parametrize("name", ["alignment", "determinism", "long_context"])
def test_a_stage_runs_the_suite_that_ships_whatever_is_called_so_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    asked: list[str] = []
    monkeypatch.setattr(stages, "run_suites", lambda names, options: noted(asked, names[0], suites()))
    day0(tmp_path, Stage(name="x", asked="?", run=stages._suite(name)))
    assert asked == [str(find_suite(name))]


@pytest.mark.parametrize(
    ("endings", "ending", "summary"),
    [
        ("passed", Ending.PASSED, "1 test passed"),
        ("not_applicable not_applicable", Ending.NOT_APPLICABLE, "it is not_applicable"),
        ("inconclusive could_not_run failed", Ending.FAILED, "it is failed"),
        ("inconclusive could_not_run", Ending.COULD_NOT_RUN, "it is could_not_run"),
        ("passed inconclusive", Ending.INCONCLUSIVE, "it is inconclusive"),
    ],
)
def test_a_stage_that_is_a_suite_shows_the_reason_of_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endings: str, ending: Ending, summary: str
) -> None:
    ended = suites(*map(Ending, endings.split()))
    monkeypatch.setattr(stages, "run_suites", lambda names, options: ended)
    options = {"options": {"tp": 2}, "card_counts": "1,2"}
    answer = day0(tmp_path, Stage(name="x", asked="?", run=stages._suite("alignment")), **options)
    (last,) = answer.stages
    assert (last.ending, last.summary) == (ending, summary)
    if not last.passed:
        assert last.advice.startswith("validator run alignment --target ")
        assert "--nproc 1 --tp 2 --card-counts 1,2" in last.advice


def test_a_suite_that_fails_without_a_word_is_told_by_its_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Answer(id="t", asked="Does it hold?", ending=Ending.FAILED)
    ended = Summary(settings=Settings(), suites=(Suite(name="a", path="", answers=(silent,)),))
    monkeypatch.setattr(stages, "run_suites", lambda names, options: ended)
    answer = day0(tmp_path, Stage(name="x", asked="?", run=stages._suite("alignment")))
    assert answer.stages[0].summary == "Does it hold?"


def test_every_suite_that_a_stage_runs_has_tests() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    paths = [str(find_suite(name)) for name in ("alignment", "determinism", "long_context")]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert all(f"{Path(path).name}::test_" in done.stdout for path in paths)


def test_weights_that_were_not_loaded_fail_the_first_stage_and_name_the_side(tmp_path: Path) -> None:
    source = Path(port(tmp_path))
    spoilt = "model.factor = 1.0\n    model.down.weight.data[3] = float('nan')"
    source.write_text(source.read_text().replace("model.factor = 1.0", spoilt))
    answer = run_day0(str(source), folder=tmp_path / "out", stages=FORWARD)
    last = answer.stages[-1]
    assert (last.name, last.ending) == ("inventory", Ending.FAILED)
    assert last.advice == "mend how this model's weights are loaded: candidate()"


@pytest.mark.parametrize("is_judged", [False, True])
def test_a_parameter_without_partner_is_listed_and_undecided_unless_its_module_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_judged: bool
) -> None:
    lacking = result(compared=("up",), unchecked=() if is_judged else ("down",))
    monkeypatch.setattr(stages, "check_target", lambda source, **options: lacking)
    monkeypatch.setattr(stages, "inventory_of", lambda source, **options: found())
    answer = day0(tmp_path, next(stage for stage in STAGES if stage.name == "parameters"))
    assert answer.stages[0].ending is (Ending.PASSED if is_judged else Ending.INCONCLUSIVE)
    assert "down.weight" in answer.stages[0].summary


def noted(asked: list[Any], one: Any, answer: Any) -> Any:
    asked.append(one)
    return answer


def suites(*endings: Ending) -> Summary:
    answers = tuple(
        Answer(
            id=str(n),
            asked="?",
            ending=ending,
            message="" if ending is Ending.PASSED else f"it is {ending}",
            compared=int(ending is Ending.PASSED),
        )
        for n, ending in enumerate(endings or (Ending.PASSED,))
    )
    return Summary(settings=Settings(), suites=(Suite(name="a", path="", answers=answers),))


def result(compared: tuple[str, ...] = ("up", "down"), unchecked: tuple[str, ...] = ()) -> Any:
    """Stands in for the judgement of a model of two weights."""
    judgements = [SimpleNamespace(module=name, path="weight", check=Check.PARAMETER) for name in compared]
    for each in judgements:
        each.verdict = Verdict.ALIGNED
    outcome = SimpleNamespace(
        judgements=judgements, unchecked=[Unchecked(module=name, why="") for name in unchecked]
    )
    return SimpleNamespace(
        outcome=outcome,
        findings=(),
        verdict=Verdict.ALIGNED,
        first_divergence=None,
        write_json=lambda path: None,
    )


def found() -> Inventory:
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("up", "down")})
    side = model_inventory(model, side="candidate")
    return Inventory(source="port.py", reference=model_inventory(model, side="reference"), candidate=(side,))


def fast() -> Speed:
    return Speed(reference_s=(2.0,), candidate_s=(1.0,), tokens=4, peak_bytes=1, of_device=False)


def test_a_damaged_memory_counts_as_none(tmp_path: Path) -> None:
    ran: list[str] = []
    day0(tmp_path, stage("a", Ending.PASSED, ran))
    (tmp_path / "out" / "day0.json").write_text("{")
    assert day0(tmp_path, stage("a", Ending.PASSED, ran)).exit_code == 0
    assert ran == ["a", "a"]


def test_a_stage_that_can_t_run_is_2_and_one_left_undecided_3(tmp_path: Path) -> None:
    def broken(context: Context, own: Stage) -> StageResult:
        raise LaunchError("rank 1 died")

    could_not = day0(tmp_path, Stage(name="a", asked="?", run=broken))
    assert (could_not.exit_code, could_not.stages[0].summary) == (2, "rank 1 died")
    assert day0(tmp_path, stage("a", Ending.INCONCLUSIVE, [])).exit_code == 3


def test_a_bad_option_and_a_folder_that_can_t_be_written_end_before_any_stage(tmp_path: Path) -> None:
    ran: list[str] = []
    with pytest.raises(UsageError, match="different numbers of ranks"):
        day0(tmp_path, stage("a", Ending.PASSED, ran), card_counts="one")
    with pytest.raises(UsageError, match="'nonsense' is not known"):
        day0(tmp_path, stage("a", Ending.PASSED, ran), options={"recipe": "nonsense"})
    with pytest.raises(TargetError, match=r"no such target: 'nowhere.py'"):
        run_day0("nowhere.py", folder=tmp_path / "out", stages=(stage("a", Ending.PASSED, ran),))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        run_day0(str(tmp_path / "port.py"), folder=tmp_path / "file" / "out", stages=())
    assert ran == []


def test_the_page_shows_names_as_text(tmp_path: Path) -> None:
    answer = day0(tmp_path, stage("a", Ending.FAILED, [], summary="<script>alert(1)</script> is wrong"))
    page = Path(answer.page).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; is wrong" in page
    assert "http" not in page


def test_a_healthy_port_passes_the_stages_of_one_pass_and_its_speed_is_told(tmp_path: Path) -> None:
    answer = run_day0(port(tmp_path), folder=tmp_path / "out", stages=FORWARD)
    assert [each.ending for each in answer.stages] == [Ending.PASSED] * 4
    assert "tokens/s" in answer.stages[-1].summary
    recorded = record_figures("speed", tmp_path / "out" / "speed.json", folder=tmp_path / "kept")
    assert recorded.exit_code == 0
    assert (tmp_path / "out" / "check.json").exists()


def test_a_fault_fails_the_stage_of_the_layers_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    answer = run_day0(port(tmp_path, factor="1.5"), folder=tmp_path / "out", stages=FORWARD)
    last = answer.stages[-1]
    assert (last.name, answer.exit_code, answer.left) == ("layers", 1, ("speed",))
    assert "head" in last.summary
    assert "validator bisect" in last.advice


def test_a_wrong_weight_fails_the_stage_of_the_parameters(tmp_path: Path) -> None:
    source = Path(port(tmp_path))
    spoilt = "model.factor = 1.0\n    model.down.weight.data[3] *= 1.5"
    source.write_text(source.read_text().replace("model.factor = 1.0", spoilt))
    answer = run_day0(str(source), folder=tmp_path / "out", stages=FORWARD)
    last = answer.stages[-1]
    assert (last.name, answer.exit_code) == ("parameters", 1)
    assert "down" in last.summary


@pytest.mark.slow
def test_a_healthy_port_passes_all_stages(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples" / "tiny_dense.py"
    answer = run_day0(str(source), folder=tmp_path, card_counts="1,2")
    assert answer.exit_code == 0, answer.sentence
    assert len(answer.stages) == len(STAGES)
