"""One sentence for a finding, word by word."""

from dataclasses import replace
from typing import Any

import pytest

from validator.checks.findings import Arm, Check, Evidence, Signature
from validator.checks.signatures import signature_words
from validator.checks.summary import summarise
from validator.numerics.recipes import EAGER
from validator.report import phrases

EVIDENCE = Evidence(outside=30, elements=2048, max_over_band=4.4, gain=0.0125, z=17.2)


def sentence(**given: Any) -> str:
    options: dict[str, Any] = {
        "module": "mlp.up",
        "check": Check.FUNCTION,
        "into": None,
        "path": "",
        "rank": None,
        "arm": Arm.MAX,
        "recipe": None,
        "evidence": EVIDENCE,
        "signature": None,
        "where": {},
    }
    return summarise(**(options | given))


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({}, "mlp.up: the output is outside"),
        ({"module": ""}, "the model: the output is outside"),
        ({"rank": 3}, "mlp.up: the output on rank 3 is outside"),
        ({"check": Check.WIRING, "module": "mlp", "into": "mlp.up"}, "mlp: what goes into mlp.up is outside"),
        ({"check": Check.PARTIAL, "rank": 1}, "mlp.up: the partial result on rank 1 is outside"),
        ({"check": Check.INPUT, "path": "input_ids"}, "mlp.up: input input_ids is outside"),
        ({"check": Check.PARAMETER, "path": "weight"}, "mlp.up: parameter weight is outside"),
    ],
    ids=["output", "the model", "rank", "into a child", "partial", "input", "parameter"],
)
def test_it_begins_with_what_is_wrong_and_on_which_rank(given: dict[str, Any], start: str) -> None:
    assert sentence(**given).startswith(start)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({}, "outside what rounding explains in 30 of 2048 elements (at worst 4.4 times the band)"),
        ({"evidence": replace(EVIDENCE, max_over_band=1.0001)}, "(at worst 1.0001 times the band)"),
        ({"arm": Arm.CLASS}, "has NaN, infinity or saturation where the oracle has none"),
        ({"arm": Arm.EXACT}, "differs in 30 of 2048 elements, and nothing is computed there"),
        (
            {"arm": Arm.EXACT, "check": Check.PARAMETER, "path": "weight"},
            "weight differs in 30 of 2048 elements",
        ),
        ({"arm": Arm.GAIN}, "z = 17"),
        ({"arm": Arm.GAIN}, "for any single element to show"),
        ({"recipe": EAGER}, "is explained by the recipe 'eager' alone, which was not declared"),
    ],
    ids=["MAX", "MAX, by a little", "CLASS", "EXACT", "parameter", "GAIN's z", "GAIN", "undeclared"],
)
def test_each_rule_has_its_words(given: dict[str, Any], part: str) -> None:
    assert part in sentence(**given)


def test_places_are_said_as_in_the_rows_of_a_finding() -> None:
    where = {"tokens": [3], "channels": [0, 3, 4, 5, 7, 14, 15, 16, 20, 21, 22, 30], "heads": None}
    words = "token 3; channels 0, 3-5, 7, 14-16 and 4 more"
    assert sentence(where=where).endswith(f", all in {words}")
    assert phrases.places(where) == words


def test_a_gain_is_of_all_elements() -> None:
    assert "all in" not in sentence(where={"tokens": [3]}, arm=Arm.GAIN)


def test_a_signature_ends_the_sentence() -> None:
    signature = Signature(kind="factor", parameters={"factor": 1.02})
    assert sentence(signature=signature).endswith("; looks like a factor of 1.02")


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("bias_per_rank", {"times": 4}, "the bias added 4 times, once on every rank"),
        ("bias_missing", {}, "the bias left out"),
        ("double_reduction", {"factor": 2.0}, "the sum over ranks taken twice (a factor of 2)"),
        ("missing_reduction", {"factor": 0.5}, "a sum over ranks left out (a factor of 0.5)"),
        ("factor", {"factor": 0.333333}, "a factor of 0.333333"),
        ("constant_vector", {"norm": 3.0}, "a constant vector added to every row"),
        ("other_parameter", {"name": "gate.weight"}, "the values of gate.weight"),
        ("permutation", {"dim": 0, "blocks": 2}, "rows in another order (2 blocks)"),
        ("permutation", {"dim": 1, "blocks": 8}, "columns in another order (8 blocks)"),
        ("swapped_halves", {}, "swapped halves"),
    ],
)
def test_a_kind_of_fault_has_its_words(kind: str, parameters: dict[str, Any], words: str) -> None:
    assert signature_words(Signature(kind=kind, parameters=parameters)) == words
