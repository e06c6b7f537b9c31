import json
from pathlib import Path

import pytest

from validator.align.traces import StepTokens
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
from validator.checks.profiles import Line, Profile, Sample, Unit, Window
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
                lines=(Line(axis="token", dim=0, size=2, starts=(0, 1), largest=(0.1, 2.0), rms=(0.1, 2.0)),),
                ulp_counts=(1, 2),
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
    assert (again.get("inside"), again.get("other")) == ({"x": 1}, None)


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    state = State(None, {})
    state.put("inside", {"x": 1})
    assert state.get("inside") == {"x": 1}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"version": 99, "identity": {}, "steps": {}}', '{"version": 1}'])
def test_a_damaged_state_is_one_message(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UsageError, match="no state of a search of this version"):
        State(tmp_path, {})


def test_a_word_about_something_in_the_folder_is_held_against_the_one_before(tmp_path: Path) -> None:
    State(tmp_path / "kept", {}).require_same("capture boundaries", "a")
    again = State(tmp_path / "kept", {})
    again.require_same("capture boundaries", "a")
    with pytest.raises(UsageError, match="capture boundaries is another than the one that this search made"):
        again.require_same("capture boundaries", "b")
