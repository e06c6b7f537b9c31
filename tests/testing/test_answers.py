import json
import math
from typing import Any

import jsonschema
import pytest

from validator.testing.answers import EXIT_CODES, Answer, Suite, Summary, run_schema
from validator.testing.records import Checked, Ending, Figure
from validator.testing.settings import Settings

E = Ending


def answer(ending: Ending, **facts: Any) -> Answer:
    message = "" if ending is E.PASSED else f"it is {ending}"
    compared = 0 if ending is E.NOT_APPLICABLE else 1
    told = {"asked": f"Is it {ending}?", "message": message, "compared": compared, **facts}
    return Answer(id=f"t.py::test_{ending}", ending=ending, **told)


def summary(*endings: Ending, errors: tuple[str, ...] = (), code: int = 0) -> Summary:
    return Summary(
        settings=Settings(target="port.py"),
        suites=(Suite(name="alignment", path="s.py", answers=tuple(map(answer, endings))),),
        errors=errors,
        exit_code_of_pytest=code,
    )


@pytest.mark.parametrize(
    ("endings", "verdict"),
    [
        ([E.PASSED], E.PASSED),
        ([E.PASSED, E.NOT_APPLICABLE], E.PASSED),
        ([E.PASSED, E.INCONCLUSIVE], E.INCONCLUSIVE),
        ([E.PASSED, E.INCONCLUSIVE, E.COULD_NOT_RUN], E.COULD_NOT_RUN),
        ([E.INCONCLUSIVE, E.COULD_NOT_RUN, E.FAILED], E.FAILED),
        ([E.PASSED, E.EXPECTED_FAILURE], E.PASSED),
        ([E.FAILED, E.EXPECTED_FAILURE], E.FAILED),
        ([E.EXPECTED_FAILURE], E.COULD_NOT_RUN),
        ([E.NOT_APPLICABLE], E.COULD_NOT_RUN),
        ([], E.COULD_NOT_RUN),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_a_fault_outweighs_all_and_nothing_compared_never_passes(
    endings: list[Ending], verdict: Ending
) -> None:
    run = summary(*endings)
    assert run.verdict is verdict
    assert run.exit_code == {"passed": 0, "failed": 1, "could_not_run": 2, "inconclusive": 3}[verdict]
    assert set(EXIT_CODES.values()) == {0, 1, 2, 3}


def test_one_suite_that_compared_nothing_leaves_no_answer() -> None:
    passed, empty = (
        Suite(name=name, path="", answers=answers)
        for name, answers in (
            ("alignment", (answer(E.PASSED),)),
            ("determinism", (answer(E.NOT_APPLICABLE),)),
        )
    )
    run = Summary(settings=Settings(), suites=(passed, empty))
    assert run.sentence == "No answer: the suite determinism compared nothing."
    assert run.exit_code == 2


def test_tests_that_compared_nothing_are_no_answer_beside_one_that_failed_as_expected() -> None:
    quiet = answer(E.PASSED, compared=0)
    nothing = (
        "the suite a compared nothing that validator knows of: its tests that passed call none of check(), "
        "baseline(), assert_aligned() or require() of `validation`"
    )
    for answers, reason in (
        ((quiet,), nothing),
        ((quiet, answer(E.EXPECTED_FAILURE, compared=0)), nothing),
        ((quiet, answer(E.EXPECTED_FAILURE)), "nothing was compared but what was expected to fail"),
    ):
        run = Summary(settings=Settings(), suites=(Suite(name="a", path="", answers=answers),))
        assert run.sentence == f"No answer: {reason}."
        assert run.exit_code == 2
    failed = answer(E.FAILED, compared=0)
    assert (
        Summary(settings=Settings(), suites=(Suite(name="a", path="", answers=(failed,)),)).why_no_answer
        == ()
    )


@pytest.mark.parametrize("code", [2, 4, 5, -9])
def test_a_pytest_that_did_not_end_well_leaves_no_answer(code: int) -> None:
    assert summary(E.PASSED, code=code).verdict is E.COULD_NOT_RUN


def test_a_fault_stays_one_where_pytest_was_interrupted_after_it() -> None:
    assert summary(E.FAILED, code=2).exit_code == 1


def test_a_pytest_that_broke_inside_is_a_bug() -> None:
    summary(E.PASSED).require_sound()
    with pytest.raises(RuntimeError, match="internal error"):
        summary(E.PASSED, code=3).require_sound()


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (summary(E.PASSED), "The port holds: 1 test passed."),
        (summary(E.PASSED, E.PASSED, E.NOT_APPLICABLE), "The port holds: 2 tests passed (1 not applicable)."),
        (
            summary(E.PASSED, E.EXPECTED_FAILURE, E.NOT_APPLICABLE),
            "The port holds but for 1 expected failure, 'Is it expected_failure?': 1 test passed (1 not "
            "applicable).",
        ),
        (
            summary(E.PASSED, E.EXPECTED_FAILURE, E.EXPECTED_FAILURE),
            "The port holds but for 2 expected failures, first 'Is it expected_failure?': 1 test passed.",
        ),
        (summary(E.PASSED, E.FAILED), "The port does not hold: 1 of 2 tests failed, first 'Is it failed?'."),
        (
            summary(E.FAILED, E.EXPECTED_FAILURE, E.NOT_APPLICABLE),
            "The port does not hold: 1 of 1 test failed (1 expected failure, 1 not applicable), first 'Is it "
            "failed?'.",
        ),
        (
            summary(E.PASSED, E.INCONCLUSIVE),
            "Undecided: 1 of 2 tests saw too little to tell, first 'Is it inconclusive?'; the others passed.",
        ),
        (summary(E.COULD_NOT_RUN), "No answer: Is it could_not_run?: it is could_not_run."),
        (summary(errors=("t.py: SyntaxError",), code=2), "No answer: t.py: SyntaxError (and 1 more)."),
        (
            Summary(
                settings=Settings(),
                suites=(Suite(name="a", path="", answers=(answer(E.COULD_NOT_RUN, asked="It holds."),)),),
            ),
            "No answer: It holds: it is could_not_run.",
        ),
        (summary(E.PASSED, code=-9), "No answer: pytest was ended: code -9."),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value.verdict),
)
def test_the_verdict_is_one_sentence(run: Summary, sentence: str) -> None:
    assert run.sentence == sentence


def test_the_sentence_of_a_fault_names_the_module_and_the_rank() -> None:
    guilty = answer(E.FAILED, module="model.layers.1", rank=3)
    run = Summary(settings=Settings(), suites=(Suite(name="a", path="", answers=(guilty,)),))
    assert run.sentence.endswith("first 'Is it failed?' at model.layers.1, rank 3.")


def test_the_document_is_strict_json_of_its_schema() -> None:
    full = answer(
        E.FAILED,
        module="model.layers.1",
        rank=1,
        evidence={"slope": math.inf, "name": "x"},
        figures=(Figure(name="perplexity", value=math.nan, unit="nat", limit=3.5),),
        checks=(Checked(verdict="divergent", headline="divergent: ...", target="port.py"),),
    )
    answers = (full, *map(answer, Ending))
    run = Summary(settings=Settings(), suites=(Suite(name="a", path="", answers=answers),))
    document = json.loads(json.dumps(run.to_json(), allow_nan=False))
    jsonschema.validate(document, run_schema())
    first = document["suites"][0]["answers"][0]
    assert first["evidence"] == {"slope": "inf", "name": "x"}
    assert first["figures"] == [
        {"name": "perplexity", "value": "nan", "unit": "nat", "limit": 3.5, "error": None, "samples": []}
    ]
    assert document["verdict"] == "failed"
    assert document["settings"]["baselines"] == "baselines"


def test_the_schema_refuses_another_document() -> None:
    document = summary(E.PASSED).to_json()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "verdict": "fine"}, run_schema())
