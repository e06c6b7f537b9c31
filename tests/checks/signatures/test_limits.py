"""Cut-off values, zeros, and elements that are no numbers."""

import pytest
import torch

from tests.checks.signatures.build import FP16, kind, named, signature, values


@pytest.mark.parametrize(
    ("low", "high"), [(None, 1.0), (-1.5, None), (-0.75, 1.25)], ids=["above", "below", "both"]
)
def test_a_clamp_is_named_with_its_limits(low: float | None, high: float | None) -> None:
    y = values()
    assert named(y, y.clamp(low, high)) == ("clamp", {"low": low, "high": high})


def test_what_is_cut_off_at_zero_is_a_clamp_and_not_zeros() -> None:
    y = values()
    assert named(y, y.clamp(min=0)) == ("clamp", {"low": 0.0, "high": None})


def test_saturation_of_the_format_is_no_clamp() -> None:
    y = 40000 * values()
    assert named(y, y.clamp(-FP16.max, FP16.max), fmt=FP16) == ("saturation", {"limit": FP16.max})
    assert kind(y, y.clamp(-60000, 60000), fmt=FP16) == "clamp"


def test_one_small_outlier_is_no_clamp() -> None:
    y = values()
    cand = y.clone()
    cand[0, 3, 4] = 0.5
    y[0, 3, 4] = 2.0
    assert signature(y, cand) is None


def test_values_that_are_pulled_in_but_not_to_one_limit_are_no_clamp() -> None:
    y = 3 * values()
    assert kind(y, 2 * torch.tanh(y / 2)) is None


def test_zeros_are_named_with_where_they_are() -> None:
    y = values()
    cand = y.clone()
    cand[:, 12:] = 0
    assert named(y, cand) == ("zeros", {"within": "tokens 12:16"})
    scattered = torch.where(values(seed=5) > 1.5, 0.0, y)
    assert named(y, scattered) == ("zeros", {})


def test_small_values_in_place_of_others_are_no_zeros() -> None:
    y = values()
    cand = y.clone()
    cand[:, 12:] = 1e-6
    assert kind(y, cand) == "tokens"


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_elements_that_are_no_numbers_are_named_with_where_they_are(value: float) -> None:
    y = values()
    cand = y.clone()
    cand[..., 8:12] = value
    assert named(y, cand) == ("not_finite", {"value": str(value), "within": "channels 8:12"})


def test_what_the_format_can_not_hold_is_no_part_of_the_fault() -> None:
    y = 30000 * values()
    cand = y.clone()
    cand[..., 8:12] = torch.nan
    assert bool((y.abs() > FP16.max * 1.01).any())
    assert named(y, cand, fmt=FP16) == ("not_finite", {"value": "nan", "within": "channels 8:12"})


def test_what_is_too_large_alone_is_an_overflow() -> None:
    y = values()
    above = float(y.abs()[y.abs() <= 2].max())
    assert named(y, torch.where(y.abs() > 2, torch.inf * y.sign(), y)) == ("overflow", {"above": above})
    assert kind(y, torch.where((y.abs() > 2) & (y.abs() < 2.5), torch.inf, y)) == "not_finite"
    assert kind(y, torch.where(y.abs() > 2, torch.nan, y)) == "not_finite"
