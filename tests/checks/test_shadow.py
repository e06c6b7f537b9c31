"""What run() does to the oracle's tensors between two calls of the model ends in a message with its cause."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from validator.checks.shadow import ShadowTensor
from validator.errors import TargetError

CUT, REORDERED = "switch assisted decoding off", "one sequence a prompt"


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda keys: keys[:, :, :2], (CUT,)),
        (lambda keys: keys.narrow(2, 0, 2), (CUT,)),
        (lambda keys: keys.index_select(0, torch.tensor([1, 0])), (REORDERED,)),
        (lambda keys: keys[torch.tensor([1])], (REORDERED,)),
        (lambda keys: keys + 1, (CUT, REORDERED)),
    ],
    ids=["slice", "narrow", "index_select", "index", "add"],
)
def test_an_operator_on_a_cache_is_told_with_its_likely_cause(
    change: Callable[[Tensor], Tensor], advice: tuple[str, ...]
) -> None:
    keys = ShadowTensor(torch.ones(2, 2, 4, 3, dtype=torch.float64), torch.bfloat16)
    with pytest.raises(TargetError, match="worked on what the oracle computed") as raised:
        change(keys)
    assert [text for text in (CUT, REORDERED) if text in str(raised.value)] == list(advice)
