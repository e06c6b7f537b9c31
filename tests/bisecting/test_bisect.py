"""The whole search on deep models in which one block, or none, is off."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.bisecting.deep_port import write_deep_net
from validator.api import capture_target
from validator.bisecting.storing import State
from validator.checks.findings import Arm, Check, Verdict
from validator.errors import UsageError
from validator.report.bisection import BisectionResult
from validator.report.json_report import schema
from validator.target_bisect import bisect_target

LOUD = "model.layers[7].down.register_forward_hook(lambda module, args, out: out * 1.25)"
QUIET = "model.layers[4].norm.eps = 1e-3"
NEVER = "raise RuntimeError('the candidate was run')"


def searched(port: Path, **options: Any) -> BisectionResult:
    result = bisect_target(str(port), **options)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    jsonschema.validate(document, schema(), cls=jsonschema.Draft202012Validator)
    return result


def named(result: BisectionResult) -> str | None:
    return None if result.first_divergence is None else result.first_divergence.module


def without_memory(result: BisectionResult) -> dict[str, Any]:
    document = result.to_json()
    notes = [note for note in document["notes"] if not note.startswith("remembered from --keep")]
    return {**document, "notes": notes}


def steps(result: BisectionResult) -> list[str]:
    return [step.name for step in result.path]


def test_a_loud_fault_is_found_at_its_block_without_looking_into_the_others(tmp_path: Path) -> None:
    result = searched(write_deep_net(tmp_path, LOUD))
    assert (result.verdict, result.exit_code, named(result)) == (Verdict.DIVERGENT, 1, "layers.7.down")
    inside = next(step for step in result.path if step.name == "inside")
    assert inside.modules == ("layers.6", "layers.7")
    claim, cost = result.claim, result.cost
    assert claim is not None
    assert claim.before is not None
    assert (claim.before.module, claim.before.verdict) == ("layers.7", Verdict.ALIGNED)
    assert claim.before.into == "layers.7.down"
    assert cost.runs == len((tmp_path / "built").read_text()) == 3
    assert cost.size_bytes < cost.full_bytes / 2
    assert any("not looked into: 10 of 12 blocks" in note for note in result.outcome.notes)


def test_a_fault_below_one_ulp_shows_at_no_boundary_and_is_swept_for(tmp_path: Path) -> None:
    result = searched(write_deep_net(tmp_path, QUIET))
    assert named(result) == "layers.4.norm"
    assert result.first_divergence is not None
    assert result.first_divergence.arm is Arm.GAIN
    boundaries, functions, *others = result.path
    assert (boundaries.verdict, functions.verdict) == ("within the noise", "aligned")
    assert [step.name for step in others][-2:] == ["sweep", "operators"]
    looked = [block for step in others if step.name == "sweep" for block in step.modules]
    assert looked == [f"layers.{i}" for i in range(len(looked))], "in execution order"
    assert "layers.4" in others[-2].modules, "it stops where the fault is"


def test_a_healthy_port_is_aligned_once_every_block_was_looked_into(tmp_path: Path) -> None:
    result = searched(write_deep_net(tmp_path))
    assert result.outcome.why_inconclusive == ()
    assert (result.verdict, result.exit_code, result.findings) == (Verdict.ALIGNED, 0, ())
    looked = [block for step in result.path if step.name == "sweep" for block in step.modules]
    assert looked == [f"layers.{i}" for i in range(12)]
    assert result.claim is None


def test_a_wrong_weight_is_found_where_it_is(tmp_path: Path) -> None:
    result = searched(write_deep_net(tmp_path, "model.layers[9].down.weight[3, 5] = 2.0"))
    assert result.first_divergence is not None
    assert (result.first_divergence.check, named(result)) == (Check.PARAMETER, "layers.9.down")
    assert "operators" not in steps(result)


COMPILED = "[layer.compile(backend='eager') for layer in model.layers]"


def test_weights_in_compiled_blocks_are_compared_though_nothing_else_in_there_can_be(tmp_path: Path) -> None:
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    for folder in (plain, compiled):
        folder.mkdir()
    expected = searched(write_deep_net(plain, layers=3))
    result = searched(write_deep_net(compiled, COMPILED, layers=3))
    assert result.verdict is Verdict.ALIGNED
    assert result.to_json()["checked"]["parameter"] == expected.to_json()["checked"]["parameter"] > 12
    assert not any("of the reference alone" in note for note in result.outcome.notes)


def test_a_wrong_weight_in_a_compiled_block_is_found(tmp_path: Path) -> None:
    quiet = f"model.layers[1].up.weight[3, 5] *= 1.02; {COMPILED}"
    result = searched(write_deep_net(tmp_path, quiet, layers=3))
    assert result.first_divergence is not None
    assert (result.first_divergence.check, named(result)) == (Check.PARAMETER, "layers.1.up")


@pytest.mark.parametrize("module", ["embed", "head"])
def test_a_fault_outside_of_the_blocks_takes_no_look_into_them(module: str, tmp_path: Path) -> None:
    spoil = f"model.{module}.register_forward_hook(lambda module, args, out: out * 1.05)"
    result = searched(write_deep_net(tmp_path, spoil))
    assert named(result) == module
    assert not {"inside", "sweep"} & set(steps(result))


def test_the_search_can_be_limited_to_a_module(tmp_path: Path) -> None:
    port = write_deep_net(tmp_path, LOUD)
    found = searched(port, module="layers.7.down")
    assert named(found) == "layers.7.down"
    inside = next(step for step in found.path if step.name == "inside")
    assert (inside.modules, inside.captured) == (("layers.7.down",), 1)
    other = searched(port, module="layers.3")
    assert (other.verdict, other.findings) == (Verdict.ALIGNED, ())
    assert "only layers.3 was looked at" in other.outcome.notes


def test_a_module_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--module 'layers.12' is no module that the reference called"):
        searched(write_deep_net(tmp_path), module="layers.12")


def test_modules_to_choose_from_are_those_that_are_called(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        searched(write_deep_net(tmp_path), module="layers.12")
    assert "layers," not in str(refused.value)
    assert "layers.0," in str(refused.value)


def test_a_search_of_a_pattern_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is of one module .* without a pattern"):
        searched(write_deep_net(tmp_path), module="layers.*")


def test_a_search_whose_folder_can_not_be_written_any_more_ends_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, keep = write_deep_net(tmp_path, LOUD), tmp_path / "kept"
    put = State.put

    def in_the_way(state: State, step: str, fields: Any) -> None:
        (keep / "state.new").mkdir(exist_ok=True)
        put(state, step, fields)

    monkeypatch.setattr(State, "put", in_the_way)
    found = searched(port, keep=keep)
    assert named(found) == named(searched(port))
    assert any("state.json can't be written" in note for note in found.outcome.notes)


def test_a_search_goes_on_from_what_was_kept_without_another_run(tmp_path: Path) -> None:
    port, keep = write_deep_net(tmp_path, QUIET), tmp_path / "kept"
    first = searched(port, keep=keep)
    built = len((tmp_path / "built").read_text())
    again = searched(port, keep=keep)
    assert len((tmp_path / "built").read_text()) == built
    assert without_memory(again) == first.to_json()
    (note,) = (note for note in again.outcome.notes if note.startswith("remembered from --keep"))
    assert "boundaries of layers.0 to layers.11, functions of layers.0 to layers.11, sweep of" in note
    assert note.endswith("operators of layers.4.norm")


def test_a_search_that_was_interrupted_runs_only_what_is_missing(tmp_path: Path) -> None:
    port, keep = write_deep_net(tmp_path, LOUD), tmp_path / "kept"
    first = searched(port, keep=keep)
    state = json.loads((keep / "state.json").read_text())
    del state["steps"]["inside layers.6 layers.7"]
    (keep / "state.json").write_text(json.dumps(state))
    built = len((tmp_path / "built").read_text())
    assert without_memory(searched(port, keep=keep)) == first.to_json()
    assert len((tmp_path / "built").read_text()) == built, "the capture was there"


def test_what_a_killed_search_left_half_written_is_made_anew(tmp_path: Path) -> None:
    port, keep = write_deep_net(tmp_path, LOUD), tmp_path / "kept"
    first = searched(port, keep=keep)
    state = json.loads((keep / "state.json").read_text())
    del state["steps"]["inside layers.6 layers.7"]
    (keep / "state.json").write_text(json.dumps(state))
    (captured,) = (path for path in keep.iterdir() if path.name.startswith("inside"))
    captured.rename(captured.with_name(f"{captured.name}.partial"))
    with pytest.raises(UsageError, match=r"capture inside-layers\.6-layers\.7 is another than the one that"):
        searched(port, keep=keep)
    state = json.loads((keep / "state.json").read_text())
    del state["steps"]["capture inside-layers.6-layers.7"]
    (keep / "state.json").write_text(json.dumps(state))
    assert without_memory(searched(port, keep=keep)) == first.to_json()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dtype": "float16"}, "takes no argument 'dtype'"),
        ({"module": "layers.3"}, "its module is None, and this one's is 'layers.3'"),
        ({"recipe": "eager"}, "its recipe is None, and this one's is 'eager'"),
    ],
)
def test_a_folder_of_another_search_is_refused(changed: dict[str, str], message: str, tmp_path: Path) -> None:
    port, keep = write_deep_net(tmp_path, layers=2), tmp_path / "kept"
    searched(port, keep=keep)
    with pytest.raises(UsageError, match=message):
        searched(port, keep=keep, **changed)


def test_a_changed_target_and_a_folder_of_other_things_are_refused(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    searched(write_deep_net(tmp_path, layers=2), keep=keep)
    with pytest.raises(UsageError, match="target's content"):
        searched(write_deep_net(tmp_path, QUIET, layers=2), keep=keep)
    with pytest.raises(UsageError, match="holds other things than a search"):
        searched(write_deep_net(tmp_path, layers=2), keep=tmp_path)


def test_a_stored_capture_is_searched_without_a_run(tmp_path: Path) -> None:
    captured = capture_target(str(write_deep_net(tmp_path, LOUD)), "candidate", tmp_path / "run")
    result = searched(write_deep_net(tmp_path, NEVER), capture=captured)
    assert named(result) == "layers.7.down"
    assert result.cost.runs == 0


def test_a_stored_capture_of_boundaries_alone_names_the_block(tmp_path: Path) -> None:
    port = write_deep_net(tmp_path, LOUD)
    captured = capture_target(str(port), "candidate", tmp_path / "run", exclude=("layers.*.*",))
    result = searched(write_deep_net(tmp_path, NEVER), capture=captured)
    assert (result.verdict, named(result)) == (Verdict.DIVERGENT, "layers.7")
    assert any("the search ends here" in note for note in result.outcome.notes)


def test_a_stored_capture_that_holds_too_little_is_inconclusive(tmp_path: Path) -> None:
    port = write_deep_net(tmp_path, QUIET)
    captured = capture_target(str(port), "candidate", tmp_path / "run", exclude=("layers.*.*",))
    result = searched(port, capture=captured)
    assert (result.verdict, result.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert any("holds nothing of the inside of layers.0" in why for why in result.outcome.why_inconclusive)


def test_a_model_without_repeated_layers_is_looked_at_in_one_step(tmp_path: Path) -> None:
    result = searched(write_deep_net(tmp_path, QUIET.replace("4", "0"), layers=1))
    assert named(result) == "layers.0.norm"
    assert steps(result)[0] == "boundaries"
    assert not {"functions", "inside", "sweep"} & set(steps(result))


def test_boundaries_that_are_inside_again_behind_the_fault_do_not_hide_it(tmp_path: Path) -> None:
    # The sixth layer adds the same large constant on both sides: what is rounded then hides all before.
    hides = """

plain = Net


def Net():
    model = plain()
    with torch.no_grad():
        model.layers[6].up.weight.zero_()
        model.layers[6].down.weight.mul_(1e4)
    return model
"""
    spoil = LOUD.replace("7", "3")
    result = searched(write_deep_net(tmp_path, spoil, changes=hides))
    assert named(result) == "layers.3.down"
    assert result.path[0].verdict == "beyond the noise from layers.3 on"
    assert any("but not all" in note for note in result.outcome.notes)
    inside = next(step for step in result.path if step.name == "inside")
    assert inside.modules == ("layers.2", "layers.3")
