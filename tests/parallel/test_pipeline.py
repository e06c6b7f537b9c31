"""What is said of pipeline-parallel ports beside what `cases` asks."""

from collections.abc import Callable
from pathlib import Path

from tests.parallel import ports_stages as stages
from tests.parallel.ports import judged
from tests.ranks import RankPool
from validator.checks.findings import Check


def test_each_layer_of_each_stage_is_judged(tmp_path: Path, rank_pool: Callable[[int], RankPool]) -> None:
    result = judged(stages.pipeline_port(3, 1), tmp_path, rank_pool)
    functions = {j.module for j in result.outcome.judgements if j.check is Check.FUNCTION}
    assert {f"model.layers.{i}.mlp.down_proj" for i in range(4)} | {"lm_head"} <= functions


def test_weights_of_the_first_layers_on_the_second_stage_are_a_finding_at_its_own_layers(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    port = stages.pipeline_port(2, 1, load=stages.second_stage_first_layers)
    result = judged(port, tmp_path, rank_pool)
    assert result.findings[0].check is Check.PARAMETER
    assert {finding.rank for finding in result.findings} == {1}
    assert all(finding.candidate_module.startswith("model.layers.0.") for finding in result.findings)
    summary = result.findings[0].summary
    assert summary.endswith("looks like the values of model.layers.0.self_attn.q_proj.weight")
