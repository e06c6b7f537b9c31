"""Experts that see other tokens on each rank than the reference's see are judged as one function."""

from collections.abc import Callable
from pathlib import Path

from tests.parallel.cases import MLP
from tests.parallel.expert_ports import SENT
from tests.parallel.ports import judged
from tests.ranks import RankPool


def test_their_block_is_judged_through_them_and_their_weights_by_themselves(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    judgements = judged(SENT, tmp_path, rank_pool).outcome.judgements
    notes = [j.note for j in judgements if j.module == MLP and "judged through" in j.note]
    assert notes
    assert all(f"{MLP}.experts" in note for note in notes)
    weights = {j.path for j in judgements if j.module == f"{MLP}.experts"}
    assert {"gate_up_proj", "down_proj"} <= weights
