"""Operators inside of a module that two ranks share: which one is wrong, and on which rank."""

from pathlib import Path
from typing import Any

import pytest
import torch

import validator
from tests.checks.inside.sharded import Model, capture_rank, inputs
from validator.checks.findings import Verdict


@pytest.mark.parametrize("uses_dtensor", [True, False], ids=["dtensor", "plain"])
def test_the_operator_and_the_rank_of_a_fault_inside_of_a_sharded_module_are_named(
    tmp_path: Path, rank_pool: Any, uses_dtensor: bool
) -> None:
    for name, is_faulty in (("healthy", False), ("faulty", True)):
        rank_pool(2).run(capture_rank, tmp_path / name, uses_dtensor, is_faulty, timeout_s=300)
    reference = Model().eval()
    healthy, faulty = (
        validator.check(reference=reference, candidate=tmp_path / name, inputs=inputs(torch.float32))
        for name in ("healthy", "faulty")
    )
    assert healthy.verdict is Verdict.ALIGNED, str(healthy)
    first = faulty.first_divergence
    assert first is not None, str(faulty)
    assert (first.module, first.into, first.op, first.rank) == ("mlp", "mlp.down", "mul", 1)
