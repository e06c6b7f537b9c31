"""Rows of another position or another sequence."""

import pytest
import torch

from tests.checks.signatures.build import kind, named, signature, values


@pytest.mark.parametrize("tokens", [1, -1, 4])
def test_rows_that_come_too_late_or_too_early(tokens: int) -> None:
    y = values()
    assert named(y, y.roll(tokens, 1)) == ("shifted", {"tokens": tokens})


def test_rows_that_are_late_from_one_position_on() -> None:
    y = values()
    cand = y.clone()
    cand[:, 9:] = y[:, 8:-1]
    assert named(y, cand) == ("shifted", {"tokens": 1})


def test_rows_of_another_sequence() -> None:
    y = values()
    cand = y.clone()
    cand[2, 4:8] = y[1, 4:8]
    assert named(y, cand) == ("shifted", {"tokens": 0, "sequences": 1})


def test_flattened_tokens_are_shifted_as_well() -> None:
    y = values(64, 32)
    assert named(y, y.roll(1, 0)) == ("shifted", {"tokens": 1})


def test_rows_in_an_arbitrary_order_are_not_shifted() -> None:
    y = values()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    assert kind(y, y[:, order]) != "shifted"


def test_channels_in_another_order_are_not_shifted() -> None:
    y = values()
    assert signature(y, y.roll(1, -1)) is None


def test_rows_of_a_few_features_may_be_alike_by_chance() -> None:
    y = values(4, 16, 2)
    assert kind(y, y.roll(1, 1)) != "shifted"
