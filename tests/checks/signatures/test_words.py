"""A sentence for each kind of signature."""

from typing import Any

import pytest

from validator.checks.findings import Signature
from validator.checks.signatures import signature_words


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        (
            "missing_reduction",
            {"missing": [2, 3], "kept": [0, 1]},
            "the sum over ranks without what ranks 2, 3 gave",
        ),
        (
            "missing_reduction",
            {"missing": [1], "kept": [0], "without_bias": True},
            "the sum over ranks without what rank 1 gave, and the bias left out",
        ),
        (
            "missing_reduction",
            {"own_term": True},
            "the sum over ranks left out, so that each has its own part alone",
        ),
        (
            "double_reduction",
            {"repeated": [1], "times": 2},
            "the sum over ranks with 2 times what rank 1 gave",
        ),
        (
            "mixed_reduction",
            {"missing": [2], "kept": [0, 1], "repeated": [1], "times": 2},
            "the sum over ranks without what rank 2 gave and with 2 times what rank 1 gave",
        ),
        (
            "wrong_term",
            {"rank": 1, "looks_like": "the sign flipped"},
            "the sign flipped in what rank 1 gave to the sum",
        ),
        ("missing_addend", {"of": "the input x"}, "the input x left out of the sum"),
        ("repeated_addend", {"of": "what mlp returned", "times": 1}, "what mlp returned added once more"),
        ("repeated_addend", {"of": "the input x", "times": 3}, "the input x added 3 times more"),
        ("factor", {"factor": 1.02, "within": "channel 40"}, "a factor of 1.02 on channel 40"),
        ("sign", {"factor": -1.0}, "the sign flipped"),
        ("offset", {"offset": -16, "within": "tokens 16:32"}, "an offset of -16 on tokens 16:32"),
        (
            "keys_of_another",
            {"start": 4, "stop": 8, "of_sequence": 1, "tokens": 4, "sequences": [0]},
            "the keys and values of tokens 4:8 replaced by those of sequence 1 4 tokens before, "
            "for sequence 0",
        ),
        (
            "keys_of_another",
            {"start": 0, "stop": 8, "of_pool": 4},
            "the keys and values of tokens 0:8 replaced by the front of the pool, "
            "where blocks of 4 tokens of all sequences lie in turn",
        ),
        (
            "attention_scale",
            {"factor": 1.5, "value": 0.25},
            "the scale of attention 0.375 in place of 0.25",
        ),
        ("attention_scale", {"factor": 1.5}, "the scores of attention multiplied by 1.5"),
        (
            "constant",
            {"op": "scaled_dot_product_attention", "factor": 1.5, "value": 0.25, "within": "tokens 4:8"},
            "the scale of attention 0.375 in place of 0.25 on tokens 4:8",
        ),
        ("constant", {"op": "mul", "factor": 1.5, "value": 0.25}, "mul with 0.375 in place of 0.25"),
        (
            "cache_scale",
            {"start": 0, "stop": 8, "factor_of_keys": 1.5},
            "a cache read at another scale: of tokens 0:8, keys by 1.5",
        ),
        (
            "keys_scaled",
            {"start": 0, "stop": 8, "factor_of_keys": 1.5, "factor_of_values": 1.25, "sequences": [1]},
            "keys and values read at another scale: of tokens 0:8, keys by 1.5 and values by 1.25, "
            "for sequence 1",
        ),
        ("clamp", {"low": None, "high": 1.5}, "values above 1.5 cut off there"),
        ("clamp", {"low": 0.0, "high": None}, "values below 0 cut off there"),
        ("clamp", {"low": -1.0, "high": 1.5}, "values cut off below -1 and above 1.5"),
        ("saturation", {"limit": 65504.0}, "saturation at 65504"),
        ("overflow", {"above": 60000.0}, "overflow of an intermediate result: what is larger than 60000"),
        ("not_finite", {"value": "nan", "within": "token 0"}, "NaN on token 0"),
        ("zeros", {"within": "experts 6, 7"}, "zeros on experts 6, 7, never written or dropped"),
        ("zeros", {}, "zeros, never written or dropped"),
        (
            "narrower_format",
            {"format": "bfloat16", "rounding": "toward_zero"},
            "values rounded toward zero to bfloat16",
        ),
        (
            "narrower_format",
            {"format": "float8_e4m3fn", "rounding": "nearest"},
            "values rounded to float8_e4m3fn",
        ),
        ("narrow_factors", {"format": "tf32"}, "products of factors that were rounded to tf32"),
        ("truncation", {"gain": -0.0025, "correlation": -0.8}, "rounding toward zero (a gain of -0.0025)"),
        ("shifted", {"tokens": 1}, "each row is the one 1 position before it"),
        ("shifted", {"tokens": -4}, "each row is the one 4 positions after it"),
        ("shifted", {"tokens": 0, "sequences": 1}, "each row is the one 1 sequence before it"),
        ("rank", {"rank": 1}, "a fault of rank 1 alone"),
        (
            "tokens",
            {"start": 16, "stop": 32, "edge": "inside", "block": 16},
            "a fault of tokens 16:32 alone (a range inside, in blocks of 16)",
        ),
        (
            "tokens",
            {"start": 5, "stop": 9, "edge": "suffix"},
            "a fault of tokens 5:9 alone (the last ones)",
        ),
        ("channels", {"channels": [7]}, "a fault of channel 7 alone"),
        ("heads", {"heads": [0, 2]}, "a fault of heads 0, 2 alone"),
        ("experts", {"experts": [6, 7]}, "a fault of all tokens of experts 6, 7"),
        (
            "rows_dealt_wrongly",
            {"order": [1, 0], "ranks": [1]},
            "rows dealt wrongly, order 1, 0, rank 1",
        ),
    ],
)
def test_a_signature_is_one_sentence(kind: str, parameters: dict[str, Any], words: str) -> None:
    assert signature_words(Signature(kind=kind, parameters=parameters)).startswith(words)
