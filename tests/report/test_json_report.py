import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest

from validator.checks.findings import Arm, Check, Evidence, Outcome, Signature
from validator.errors import IncompleteCaptureError, TargetError, UsageError
from validator.report.json_report import error_json, schema, to_json


def validate(document: dict[str, Any]) -> None:
    """Validate what a reader of the file gets: strict JSON, read back."""
    read = json.loads(json.dumps(document, allow_nan=False))
    jsonschema.validate(read, schema(), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", ["aligned", "divergent", "inconclusive", "undeclared"])
def test_every_verdict_gives_a_document_of_the_schema(name: str, request: pytest.FixtureRequest) -> None:
    outcome: Outcome = request.getfixturevalue(name)
    document = to_json(outcome)
    validate(document)
    assert document["schema"] == 1
    assert document["verdict"] == outcome.verdict.value


def test_the_schema_is_itself_legal() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("error", [UsageError, TargetError, IncompleteCaptureError])
def test_an_error_gives_a_document_of_the_schema(error: type[UsageError]) -> None:
    document = error_json(error("no such file: 'port.py'"))
    validate(document)
    assert document == {"schema": 1, "error": {"kind": error.kind, "message": "no such file: 'port.py'"}}


def test_the_first_divergence_is_the_first_divergent_finding(divergent: Outcome, undeclared: Outcome) -> None:
    document = to_json(replace(divergent, findings=(*undeclared.findings, *divergent.findings)))
    validate(document)
    assert document["first_divergence"] == document["findings"][1]
    assert document["findings"][0]["verdict"] == "undeclared_precision"
    assert to_json(undeclared)["first_divergence"] is None


def test_a_finding_has_the_documented_keys(divergent: Outcome) -> None:
    found = to_json(divergent)["first_divergence"]
    assert found["module"] == "model.layers.2.mlp.down_proj"
    assert (found["check"], found["arm"], found["rank"], found["into"]) == ("function", "MAX", 1, None)
    assert found["where"] == {"tokens": [0, 1, 2, 3, 9], "channels": [40], "heads": None, "experts": None}
    assert found["signature"] == {"kind": "factor", "parameters": {"factor": 1.02}, "residual_ulp": 0.4}
    assert found["evidence"]["worst_index"] == [1, 9, 40]
    assert found["evidence"]["candidate"] == 0.83203125


def test_checks_are_counted_and_what_was_left_out_is_listed(inconclusive: Outcome) -> None:
    checked = to_json(inconclusive)["checked"]
    assert (checked["parameter"], checked["function"], checked["wiring"], checked["replica"]) == (4, 4, 4, 0)
    assert checked["unchecked"][0] == {"module": "model.layers.0.attn", "why": "it never fired"}
    assert len(checked["unchecked"]) == 5


def test_what_could_not_show_is_listed_with_what_would(aligned: Outcome) -> None:
    endless = replace(aligned.unobservable[0], smallest=float("inf"))
    document = to_json(replace(aligned, unobservable=(*aligned.unobservable, endless)))
    validate(document)
    first, *_, bias, last = document["checked"]["unobservable"]
    assert first == {
        "module": "model.norm",
        "what": "epsilon 1e-06 x10",
        "why": "it is far below what it is added to",
        "propose": "tokens whose mean square is about 1e-06",
        "smallest": 512.5,
    }
    assert (bias["what"], bias["smallest"], last["smallest"]) == ("bias left out", None, "inf")


def test_edges_have_the_rule_that_fired_and_the_number_of_their_elements(divergent: Outcome) -> None:
    judged = (replace(divergent.judgements[7], arm=Arm.MAX), *divergent.judgements[8:])
    document = to_json(replace(divergent, judgements=judged))
    validate(document)
    assert [(edge["arm"], edge["elements"]) for edge in document["edges"][:2]] == [
        ("MAX", 2048),
        (None, 2048),
    ]
    for edge in document["edges"]:
        del edge["arm"], edge["elements"]
    validate(document)


def test_every_edge_that_rounding_explains_has_its_smallest_gain(aligned: Outcome) -> None:
    gains = to_json(aligned)["checked"]["smallest_gains"]
    assert len(gains) == sum(j.check is not Check.PARAMETER for j in aligned.judgements)
    assert gains[0] == {
        "module": "model.layers.0.mlp.down_proj",
        "into": None,
        "path": "",
        "call": 0,
        "recipe": "fused",
        "smallest_gain": 2.5e-4,
    }


def test_numbers_that_are_not_finite_become_strings(divergent: Outcome) -> None:
    evidence = Evidence(reference=float("nan"), candidate=float("-inf"), max_over_band=np.float32("inf"))
    found = replace(divergent.findings[0], evidence=evidence)
    document = to_json(replace(divergent, findings=(found,)))
    validate(document)
    shown = document["first_divergence"]["evidence"]
    assert (shown["reference"], shown["candidate"], shown["max_over_band"]) == ("nan", "-inf", "inf")


def test_numpy_scalars_and_other_objects_become_json(divergent: Outcome) -> None:
    signature = Signature(
        kind="permutation", parameters={"order": (np.int64(1), np.int64(0)), "how": {"b", "a"}}
    )
    found = replace(divergent.findings[0], signature=signature)
    document = to_json(replace(divergent, findings=(found,)))
    validate(document)
    assert document["first_divergence"]["signature"]["parameters"] == {"order": [1, 0], "how": ["a", "b"]}


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        holder: Any = document
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = to

    return change


def _drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        holder: Any = document
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_set("verdict", to="fine"), id="unknown-verdict"),
        pytest.param(_set("verdict", to="aligned"), id="aligned-with-findings"),
        pytest.param(_set("schema", to=2), id="other-version"),
        pytest.param(_drop("checked", "unobservable"), id="no-unobservable"),
        pytest.param(_drop("checked", "smallest_gains"), id="no-smallest-gains"),
        pytest.param(_set("first_divergence", to=None), id="divergent-without-first"),
        pytest.param(_set("findings", 0, "arm", to="max"), id="unknown-arm"),
        pytest.param(_set("findings", 0, "evidence", "gain", to="large"), id="gain-is-no-number"),
        pytest.param(_set("findings", 0, "surprise", to=1), id="unknown-key"),
        pytest.param(_set("checked", "function", to=-1), id="negative-count"),
        pytest.param(_drop("checked", "wiring"), id="no-wiring-count"),
        pytest.param(_drop("run"), id="no-run"),
        pytest.param(_drop("findings", 0, "module"), id="finding-without-module"),
        pytest.param(_drop("findings", 0, "where", "heads"), id="where-without-heads"),
    ],
)
def test_a_document_that_breaks_the_schema_is_refused(
    divergent: Outcome, change: Callable[[dict[str, Any]], None]
) -> None:
    document = to_json(divergent)
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(document)
