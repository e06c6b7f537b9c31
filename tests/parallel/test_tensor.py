"""Tensor-parallel ports are judged like plain ones, and a fault of one is named with its module and rank."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallel.ports import Port, Spoil, assert_aligned, first, judged
from tests.parallel.spoils import (
    LAYER,
    RANK,
    key_head_of_others,
    key_norm_of_others,
    named,
    unsummed_attention,
)
from tests.parallel.tensor_ports import COPIED_HEADS, DTENSORS, LATE_SUMS, ONE_HEAD, WIDE_NORMS, planned
from tests.ranks import RankPool

Pool = Callable[[int], RankPool]

ATTENTION, MLP = (f"model.layers.{LAYER}.{name}" for name in ("self_attn", "mlp"))

HEALTHY = {
    "planned-dense-4-bfloat16": planned("tiny-dense", 4, "bfloat16"),
    "planned-dense-4-float32": planned("tiny-dense", 4, "float32"),
    "planned-moe-4-bfloat16": planned("tiny-moe", 4, "bfloat16"),
    "planned-moe-2-float32": planned("tiny-moe", 2, "float32"),
    "two-key-heads-on-four-ranks": COPIED_HEADS,
    "one-key-head-on-four-ranks": ONE_HEAD,
    "norms-over-all-heads": WIDE_NORMS,
    "sums-left-to-the-caller": LATE_SUMS,
    "dtensors": DTENSORS,
}

FAULTS = {
    "one-rank's-term-scaled": (
        COPIED_HEADS,
        named(f"tp-partial-scale:layer={LAYER},factor=1.02,rank=2"),
        (f"{MLP}.down_proj", None, 2),
        "factor",
    ),
    "no-sum": (
        COPIED_HEADS,
        named(f"tp-not-reduced:layer={LAYER}"),
        (f"{MLP}.down_proj", None, None),
        "missing_reduction",
    ),
    "summed-twice": (
        COPIED_HEADS,
        named(f"tp-reduced-twice:layer={LAYER}"),
        (f"{MLP}.down_proj", None, None),
        "double_reduction",
    ),
    "another-key-head": (COPIED_HEADS, key_head_of_others, (f"{ATTENTION}.k_proj", None, RANK), None),
    "the-norm-of-another-key-head": (
        WIDE_NORMS,
        key_norm_of_others,
        (f"{ATTENTION}.k_norm", None, RANK),
        None,
    ),
    "no-sum-in-the-caller": (
        LATE_SUMS,
        unsummed_attention,
        (f"{ATTENTION}.o_proj", None, None),
        "missing_reduction",
    ),
}


@pytest.mark.parametrize("port", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_port_is_aligned_and_all_of_it_is_checked(
    port: Port, tmp_path: Path, rank_pool: Pool
) -> None:
    assert_aligned(judged(port, tmp_path, rank_pool))


@pytest.mark.parametrize(("port", "spoil", "guilty", "signature"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_its_module_and_rank(
    port: Port,
    spoil: Spoil,
    guilty: tuple[str, str | None, int | None],
    signature: str | None,
    tmp_path: Path,
    rank_pool: Pool,
) -> None:
    result = judged(port, tmp_path, rank_pool, spoil)
    assert first(result) == guilty
    found = result.findings[0].signature
    assert signature in (None, None if found is None else found.kind)
    assert {finding.module for finding in result.findings} == {guilty[0]}
