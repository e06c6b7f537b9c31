"""Rounding of another kind: to a narrower format, or toward zero."""

import pytest
import torch

from tests.checks.signatures.build import BF16, FP16, FP32, kind, named, signature, values
from validator.numerics.contractions import TF32
from validator.numerics.formats import FORMATS, Format
from validator.numerics.rounding import round_nearest, round_toward_zero

E4M3, E5M2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]


@pytest.mark.parametrize(
    ("narrow", "stored"),
    [(E4M3, BF16), (E5M2, BF16), (E4M3, FP16), (BF16, FP32), (FP16, FP32), (TF32, FP32)],
    ids=lambda fmt: fmt.name,
)
def test_values_that_fit_a_narrower_format_than_they_are_stored_in(narrow: Format, stored: Format) -> None:
    # Beyond float16's range, TF32 has values of its own.
    y = values() * (1e6 if narrow is TF32 else 1)
    found = ("narrower_format", {"format": narrow.name, "rounding": "nearest"})
    assert named(y, round_nearest(y, narrow), fmt=stored) == found


def test_bits_that_were_cut_off_are_told_from_rounding() -> None:
    y = values()
    found = ("narrower_format", {"format": "bfloat16", "rounding": "toward_zero"})
    assert named(y, round_toward_zero(y, BF16), fmt=FP32) == found


@pytest.mark.parametrize("made", ["zeros and ones", "one-hot", "powers of two"])
def test_values_that_fit_by_chance_are_no_narrower_format(made: str) -> None:
    cand = {
        "zeros and ones": (values() > 0).double(),
        "one-hot": torch.nn.functional.one_hot(torch.arange(64).reshape(4, 16) % 32, 32).double(),
        "powers of two": torch.exp2(values().round()),
    }[made]
    assert kind(cand + 0.3 * values(seed=2), cand) is None


def test_values_that_fit_but_are_others_are_no_narrower_format() -> None:
    y = values()
    assert signature(y, round_nearest(y + 0.4 * values(seed=1), E4M3)) is None


def test_the_own_format_of_values_is_not_narrower() -> None:
    y = values()
    assert kind(y, y + 0.2 * values(seed=3)) is None


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda fmt: fmt.name)
def test_rounding_toward_zero_is_named_with_its_gain_and_correlation(fmt: Format) -> None:
    y = values()
    found = signature(y, round_toward_zero(y, fmt), fmt=fmt)
    assert found is not None
    assert found.kind == "truncation"
    assert found.parameters["gain"] / fmt.unit_roundoff == pytest.approx(-0.65, abs=0.05)
    assert found.parameters["correlation"] < -0.5
    # Evenly spread over one ulp: its standard deviation.
    assert found.residual_ulp == pytest.approx(12**-0.5, abs=0.02)


def test_a_factor_with_the_gain_of_truncation_is_a_factor() -> None:
    y = values()
    factor = 1 - 0.65 * FP16.unit_roundoff
    assert kind(y, y * factor, fmt=FP16, noise=0.0) == "factor"


def test_rounding_away_from_zero_or_to_nearest_is_no_truncation() -> None:
    y = values()
    away = y + y.sign() * BF16.unit_roundoff * torch.exp2(torch.floor(torch.log2(y.abs())))
    assert kind(y, away) != "truncation"
    assert kind(y, y, noise=-0.2) != "truncation"


def test_few_elements_do_not_tell_truncation() -> None:
    y = values(4, 8, 8)
    assert kind(y, round_toward_zero(y, BF16)) != "truncation"
