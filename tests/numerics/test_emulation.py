"""An emulation that contradicts itself is refused, with the value and what would be legal."""

from typing import Any

import pytest

from validator.errors import UsageError
from validator.numerics.emulation import Emulation, Order, RoundingMode


def test_names_of_choices_are_as_good_as_their_members() -> None:
    emulation = Emulation(accumulate="bfloat16", order="blocked", block=2, rounding="stochastic")  # type: ignore[arg-type]
    assert emulation.order is Order.BLOCKED
    assert emulation.rounding is RoundingMode.STOCHASTIC


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": "fp32"}, "Emulation(accumulate='fp32'): legal are None, float64, float32"),
        ({"rounding": "up"}, "Emulation(rounding='up'): legal are nearest, toward_zero, stochastic"),
        ({"accumulate": "float32", "order": "blocked"}, "Emulation(block=None): the order is blocked"),
        ({"accumulate": "float32", "block": 4}, "Emulation(block=4): the order is sequential"),
        ({"order": "pairwise"}, "Emulation(accumulate=None): torch's own kernel sums"),
        ({"accumulator_bits": 13}, "Emulation(accumulate=None)"),
        ({"accumulate": "bfloat16", "accumulator_bits": 13}, "bfloat16 keeps 1 to 7"),
        ({"split_k": 0}, "Emulation(split_k=0): it must be 1 or more"),
        ({"partials": "bfloat16"}, "Emulation(partials='bfloat16'): split_k is 1"),
        ({"reduce": "bfloat16"}, "Emulation(reduce='bfloat16'): ranks is 1"),
        ({"fp8": True, "split_k": 2}, "Emulation(fp8=True): it has its own factors and parts"),
    ],
)
def test_a_contradiction_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        Emulation(**options)
    assert message in str(raised.value)
