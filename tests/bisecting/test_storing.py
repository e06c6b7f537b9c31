import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from validator.align.traces import StepTokens
from validator.bisecting.looks import Look
from validator.bisecting.path import Step
from validator.bisecting.storing import State, outcome_from_json, outcome_to_json
from validator.checks.findings import (
    Arm,
    Check,
    Evidence,
    Finding,
    Judgement,
    Outcome,
    Signature,
    Unchecked,
    Unobservable,
    Verdict,
)
from validator.checks.profiles import ULP_EDGES, Line, Profile, Sample, Unit, Window
from validator.errors import UsageError

EVIDENCE = Evidence(
    max_over_band=float("inf"), worst_index=(0, 3), shape=(2, 4), dims=("batch", "channel"), outside=1
)
OUTCOME = Outcome(
    verdict=Verdict.DIVERGENT,
    findings=(
        Finding(
            module="a",
            candidate_module="b",
            check=Check.FUNCTION,
            verdict=Verdict.DIVERGENT,
            arm=Arm.MAX,
            summary="off",
            order=2,
            evidence=EVIDENCE,
            where={"tokens": [1, 2]},
            signature=Signature(kind="factor", parameters={"factor": 1.5}),
            step=StepTokens(call=1, number=2, count=3, start=4, stop=5, kept=(4,)),
        ),
    ),
    judgements=(
        Judgement(
            module="a",
            candidate_module="b",
            check=Check.EXACT,
            verdict=Verdict.ALIGNED,
            order=3,
            evidence=EVIDENCE,
            smallest_gain=float("inf"),
            profile=Profile(
                unit=Unit.BAND,
                largest=float("inf"),
                rms=0.5,
                lines=(
                    Line(
                        axis="token",
                        dim=0,
                        size=2,
                        starts=(0, 1),
                        largest=(0.1, 2.0),
                        rms=(0.1, 2.0),
                        counts=(4, 4),
                    ),
                ),
                ulp_counts=range(len(ULP_EDGES) + 2),
                sample=Sample(oracle=(1.0,), candidate=(2.0,), error=(0.5,)),
                window=Window(
                    start=(0,),
                    worst=(1,),
                    oracle=((1.0, 2.0),),
                    candidate=((1.0, 2.0),),
                    allowed=((0.5, 0.5),),
                ),
            ),
        ),
    ),
    unchecked=(Unchecked(module="c", why="it never ran"),),
    unobservable=(Unobservable(module="d", what="x", why="y", propose="z", smallest=1e-3),),
    distribution={"kl": {"mean": 0.5}},
    run={"candidate": {"recipe": None}},
    why_inconclusive=("this",),
    notes=("that",),
)


def test_an_outcome_is_the_same_after_it_was_stored() -> None:
    assert outcome_from_json(json.loads(json.dumps(outcome_to_json(OUTCOME)))) == OUTCOME


def test_what_was_kept_is_there_again_and_nothing_else(tmp_path: Path) -> None:
    State(tmp_path / "kept", {"target": "a"}).put("inside", {"x": 1})
    again = State(tmp_path / "kept", {"target": "a"})
    assert (again.get("inside", dict), again.get("other", dict)) == ({"x": 1}, None)


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    state = State(None, {})
    state.put("inside", {"x": 1})
    assert state.get("inside", dict) == {"x": 1}
    assert list(tmp_path.iterdir()) == []


def test_where_a_step_can_t_be_written_the_search_goes_on_and_what_was_kept_stays(tmp_path: Path) -> None:
    state = State(tmp_path / "kept", {})
    state.put("first", {"x": 1})
    (tmp_path / "kept" / "state.new").mkdir()
    state.put("second", {"x": 2})
    state.put("third", {"x": 3})
    assert (state.get("second", dict), state.get("third", dict)) == ({"x": 2}, {"x": 3})
    assert "state.json can't be written" in str(state.trouble)
    (tmp_path / "kept" / "state.new").rmdir()
    again = State(tmp_path / "kept", {})
    assert (again.get("first", dict), again.get("second", dict)) == ({"x": 1}, None)
    assert again.trouble is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[]", "list indices"),
        ("[" * 100_000, "RecursionError"),
        ('{"version": 3, "identity": {}, "steps": {}}', "it is of version 3, and this is 4"),
        ('{"version": 4}', "identity"),
    ],
    ids=["empty", "list", "deep", "older", "short"],
)
def test_a_damaged_or_older_state_is_one_message(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UsageError, match=f"no state of a search of this version .*{why}"):
        State(tmp_path, {})


@pytest.mark.parametrize("key", ["identity", "steps"])
def test_a_state_of_the_right_version_and_another_form_is_one_message(key: str, tmp_path: Path) -> None:
    State(tmp_path / "kept", {})
    path = tmp_path / "kept" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: 5}))
    with pytest.raises(UsageError, match="no state of a search"):
        State(tmp_path / "kept", {})


def _with_other_bins(fields: dict[str, Any]) -> None:
    fields["outcome"]["judgements"][0]["profile"]["ulp_counts"] = [1, 2]


def _without_step(fields: dict[str, Any]) -> None:
    del fields["step"]


def _with_unknown_verdict(fields: dict[str, Any]) -> None:
    fields["outcome"]["verdict"] = "fine"


@pytest.mark.parametrize("spoil", [_with_other_bins, _without_step, _with_unknown_verdict])
def test_a_step_that_can_t_be_read_is_one_message(
    spoil: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    step = Step(name="inside", modules=("a",), captured=1, runs=1, size_bytes=8, verdict="aligned")
    look = Look(step=step, outcome=OUTCOME)
    State(tmp_path / "kept", {}).put("inside", look.to_json())
    assert State(tmp_path / "kept", {}).get("inside", Look.from_json) == look
    path = tmp_path / "kept" / "state.json"
    document = json.loads(path.read_text())
    spoil(document["steps"]["inside"])
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"can't be read.*name a new folder"):
        State(tmp_path / "kept", {}).get("inside", Look.from_json)


def test_a_word_about_something_in_the_folder_is_held_against_the_one_before(tmp_path: Path) -> None:
    State(tmp_path / "kept", {}).require_same("capture boundaries", "a")
    again = State(tmp_path / "kept", {})
    again.require_same("capture boundaries", "a")
    with pytest.raises(UsageError, match="capture boundaries is another than the one that this search made"):
        again.require_same("capture boundaries", "b")
