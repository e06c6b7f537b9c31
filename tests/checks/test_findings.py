"""The records of what the checks say."""

from dataclasses import fields, replace

import pytest

from validator.checks.findings import Arm, Check, EdgeVerdict, Evidence, Judgement, Verdict

JUDGEMENT = Judgement(
    module="layers.0",
    candidate_module="blocks.0",
    check=Check.WIRING,
    verdict=Verdict.UNDECLARED_PRECISION,
    order=7,
    evidence=Evidence(outside=3, elements=8),
    into="layers.0.up",
    path="input",
    call=2,
    rank=1,
    arm=Arm.MAX,
    recipe="eager",
    dtype="bfloat16",
)


def test_a_finding_has_all_that_was_judged_of_its_edge() -> None:
    found = JUDGEMENT.found(summary="off", op="mm")
    assert (found.summary, found.op) == ("off", "mm")
    for field in fields(EdgeVerdict):
        assert getattr(found, field.name) == getattr(JUDGEMENT, field.name) != field.default


def test_what_is_known_of_a_finding_alone_goes_before_what_was_judged() -> None:
    found = JUDGEMENT.found(summary="off", rank=3, evidence=Evidence(outside=4))
    assert (found.rank, found.evidence, found.call) == (3, Evidence(outside=4), 2)
    with pytest.raises(TypeError, match="ranks"):
        replace(JUDGEMENT, rank=None).found(summary="off", ranks=(1, 2))
