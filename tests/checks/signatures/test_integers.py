"""Integers that are off by one number."""

from typing import Any

import pytest
import torch
from torch import Tensor

from validator.checks.signatures import integer_offset


def named(exact: Tensor, cand: Tensor) -> dict[str, Any] | None:
    judged = torch.ones(exact.shape, dtype=torch.bool)
    found = integer_offset(exact=exact, cand=cand, judged=judged, dims=("batch", "token"))
    return None if found is None else dict(found.parameters)


POSITIONS = torch.arange(32).expand(2, 32)


def test_positions_that_start_again_are_named_with_where() -> None:
    """The second of two packed sequences, or of two ranks' chunks, counts from 0 again."""
    assert named(POSITIONS, POSITIONS % 16) == {"offset": -16, "within": "tokens 16:32"}


def test_all_positions_may_be_shifted() -> None:
    assert named(POSITIONS, POSITIONS + 1) == {"offset": 1}


@pytest.mark.parametrize("made", ["dealt in turn", "three restarts", "one integer", "equal"])
def test_other_integers_have_no_offset(made: str) -> None:
    cand = {
        "dealt in turn": POSITIONS.unflatten(1, (16, 2)).mT.flatten(1),
        "three restarts": POSITIONS % 8,
        "one integer": POSITIONS.index_put((torch.tensor(0), torch.tensor(3)), torch.tensor(9)),
        "equal": POSITIONS,
    }[made]
    assert named(POSITIONS, cand) is None


def test_masks_have_no_offset() -> None:
    mask = torch.ones(2, 32, dtype=torch.bool)
    assert named(mask, ~mask) is None
