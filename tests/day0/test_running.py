"""Day 0: stages in their order, until one does not pass; what passed is remembered."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.baselines.test_runs import port
from validator.day0.records import Day0, StageResult
from validator.day0.running import run_day0
from validator.day0.stages import STAGES, Context, Stage
from validator.errors import LaunchError, UsageError
from validator.testing.records import Ending

Run = Callable[[Context, Stage], StageResult]
# Those of one forward pass; the others run suites.
FORWARD = tuple(stage for stage in STAGES if stage.name in ("inventory", "parameters", "layers", "speed"))


def stage(name: str, ending: Ending, ran: list[str], summary: str = "found") -> Stage:
    """Return a stage that ends so, and tells that it ran."""

    def run(context: Context, own: Stage) -> StageResult:
        ran.append(name)
        return own.ended(ending, summary)

    return Stage(name=name, asked="?", run=run)


def day0(folder: Path, *stages: Stage, **options: object) -> Day0:
    source = folder / "port.py"
    if not source.exists():
        source.write_text("")
    return run_day0(str(source), folder=folder / "out", stages=stages, **options)  # type: ignore[arg-type]


def test_it_stops_at_the_first_stage_that_fails_and_says_what_was_not_reached(tmp_path: Path) -> None:
    ran: list[str] = []
    stages = [
        stage(*each, ran) for each in (("a", Ending.PASSED), ("b", Ending.FAILED), ("c", Ending.PASSED))
    ]
    answer = day0(tmp_path, *stages)
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


@pytest.mark.parametrize("what", ["target", "file beside it", "options"])
def test_what_was_found_of_something_else_is_not_remembered(tmp_path: Path, what: str) -> None:
    ran: list[str] = []
    day0(tmp_path, stage("a", Ending.PASSED, ran))
    options = {}
    if what == "target":
        (tmp_path / "port.py").write_text("x = 1")
    elif what == "file beside it":
        (tmp_path / "kernels.py").write_text("x = 1")
    else:
        options = {"options": {"nproc": 2}}
    day0(tmp_path, stage("a", Ending.PASSED, ran), **options)
    assert ran == ["a", "a"]


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
