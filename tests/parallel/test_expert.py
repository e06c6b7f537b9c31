"""Ports whose experts are split over ranks are judged like plain ones, and their faults named.

Where ranks run different tokens, the calls of their experts don't line up with the reference's: the block
around them is judged as one function, and what is wrong with it tells the experts and the rank.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallel.expert_ports import (
    DATA_EXPERTS,
    IDLE_RANK,
    PLANNED,
    PLANNED_SENT,
    SENT,
    SHARED,
    SUMMED,
    SUMMED_TENSORS,
)
from tests.parallel.ports import Port, Spoil, assert_aligned, first, judged
from tests.parallel.spoils import (
    LAYER,
    RANK,
    last_map_off_by_one,
    mixed_up_answers,
    one_sum_of_two,
    overcounted_shared_expert,
    rolled_tokens,
    scaled_experts,
)
from tests.ranks import RankPool

Pool = Callable[[int], RankPool]

MLP = f"model.layers.{LAYER}.mlp"

HEALTHY = {
    "planned": PLANNED,
    "planned-and-sent": PLANNED_SENT,
    "summed": SUMMED,
    "summed-with-a-shared-expert": SHARED,
    "sent": SENT,
    "sent-with-an-idle-rank": IDLE_RANK,
    "experts-and-tensors": SUMMED_TENSORS,
    "data-and-experts": DATA_EXPERTS,
}

FAULTS = {
    "a-map-off-by-one": (SUMMED, last_map_off_by_one, (MLP, None, RANK), "experts"),
    "another-expert-of-the-rank": (SENT, last_map_off_by_one, (MLP, None, RANK), "experts"),
    "answers-in-another-order": (SENT, mixed_up_answers, (MLP, None, RANK), None),
    "a-sum-of-different-tokens": (SUMMED, rolled_tokens, (MLP, None, RANK), None),
    "one-rank's-term-scaled": (SUMMED, scaled_experts, (MLP, None, RANK), "wrong_term"),
    "one-sum-of-two": (SUMMED_TENSORS, one_sum_of_two, (f"{MLP}.experts", None, None), "missing_reduction"),
    "a-shared-expert-counted-twice": (SHARED, overcounted_shared_expert, (MLP, None, None), None),
}


@pytest.mark.parametrize("port", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_port_is_aligned_and_all_of_it_is_checked(
    port: Port, tmp_path: Path, rank_pool: Pool
) -> None:
    result = judged(port, tmp_path, rank_pool)
    assert_aligned(result)
    judgements = result.outcome.judgements
    assert {"gate_up_proj", "down_proj"} <= {j.path for j in judgements if j.module == f"{MLP}.experts"}
    through = any(f"judged through {MLP}.experts" in j.note for j in judgements if j.module == MLP)
    assert through == (port in (SENT, IDLE_RANK, DATA_EXPERTS))


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
