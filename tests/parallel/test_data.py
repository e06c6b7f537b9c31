"""Ports whose ranks run different sequences are judged like plain ones, and their faults named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallel.data_ports import DATA, DATA_TENSORS, WRAPPED_DATA
from tests.parallel.ports import Port, Spoil, assert_aligned, first, judged
from tests.parallel.spoils import LAYER, named, scaled_term
from tests.ranks import RankPool

Pool = Callable[[int], RankPool]

LAYER_NAME = f"model.layers.{LAYER}"

HEALTHY = {"fed-by-rank": DATA, "split-by-a-wrapper": WRAPPED_DATA, "data-and-tensors": DATA_TENSORS}

FAULTS = {
    "one-rank's-norm": (
        DATA,
        named(f"norm-eps:layer={LAYER},eps=0.3,rank=1"),
        (f"{LAYER_NAME}.input_layernorm", None, 1),
    ),
    "one-rank's-term": (
        DATA_TENSORS,
        scaled_term,
        (f"{LAYER_NAME}.mlp.down_proj", None, 3),
    ),
}


@pytest.mark.parametrize("port", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_port_is_aligned_and_all_of_it_is_checked(
    port: Port, tmp_path: Path, rank_pool: Pool
) -> None:
    assert_aligned(judged(port, tmp_path, rank_pool))


@pytest.mark.parametrize(("port", "spoil", "guilty"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_its_module_and_rank(
    port: Port, spoil: Spoil, guilty: tuple[str, str | None, int | None], tmp_path: Path, rank_pool: Pool
) -> None:
    result = judged(port, tmp_path, rank_pool, spoil)
    assert first(result) == guilty
    assert {finding.module for finding in result.findings} == {guilty[0]}
