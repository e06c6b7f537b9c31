"""Pipeline-parallel ports, of torch and of their own, with uneven stages and micro-batches."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parallel import ports_stages as stages
from tests.parallel.ports import Port, Spoil, assert_aligned, first, judged
from tests.ranks import RankPool
from validator.checks.findings import Check

HEALTHY = {
    "own sends and layer numbers": stages.pipeline_port(3, 1),
    "a model cut by hand": stages.cut_port(1, 2),
    "a model cut by hand, masks by layer": stages.cut_port(1, 2, family="gemma2", kernel="eager"),
    "torch's 1f1b": stages.pipeline_port(3, 1, schedule="1f1b"),
    "torch's gpipe, tensor-parallel stages": stages.pipeline_port(1, 2, schedule="gpipe", tp=2),
}
UNEVEN = stages.pipeline_port(2, 1)


@pytest.mark.parametrize("port", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_pipeline_is_aligned(
    port: Port, tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(port, tmp_path, rank_pool)
    assert_aligned(result)
    layers = port.changes["num_hidden_layers"]
    functions = {j.module for j in result.outcome.judgements if j.check is Check.FUNCTION}
    assert {f"model.layers.{i}.mlp.down_proj" for i in range(layers)} | {"lm_head"} <= functions


def test_weights_of_the_first_layers_on_the_second_stage_are_a_finding_at_its_own_layers(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    port = stages.pipeline_port(2, 1, load=stages.second_stage_first_layers)
    result = judged(port, tmp_path, rank_pool)
    assert first(result) == ("model.layers.2.self_attn.q_proj", None, 1)
    assert result.findings[0].check is Check.PARAMETER
    assert {finding.rank for finding in result.findings} == {1}
    assert all(finding.module.startswith("model.layers.2.") for finding in result.findings)
    assert all(finding.candidate_module.startswith("model.layers.0.") for finding in result.findings)
    summary = result.findings[0].summary
    assert summary.endswith("looks like the values of model.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize(
    ("spoil", "signature"),
    [(stages.handed_on_narrow, "narrower_format"), (stages.parts_swapped, "shifted")],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_handed_on_wrongly_is_named_between_the_stages(
    spoil: Spoil, signature: str, tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    result = judged(UNEVEN, tmp_path, rank_pool, spoil)
    assert [first(result)] == [(f.module, f.into, f.rank) for f in result.findings]
    assert first(result) == ("model", "model.layers.2", 1)
    found = result.findings[0].signature
    assert found is not None
    assert found.kind == signature


def test_a_partial_sum_of_one_rank_of_a_stage_is_that_ranks(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    port = stages.pipeline_port(1, 1, tp=2)
    result = judged(port, tmp_path, rank_pool, stages.partial_scaled)
    assert result.findings[0].check is Check.PARTIAL
    assert first(result) == ("model.layers.1.mlp.down_proj", None, 3)
    assert {finding.module for finding in result.findings} == {"model.layers.1.mlp.down_proj"}


def test_masks_that_follow_the_number_on_the_stage_are_named_at_the_layers_that_have_the_wrong_one(
    tmp_path: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    port = stages.cut_port(1, 2, family="gemma2", kernel="eager")
    result = judged(port, tmp_path, rank_pool, stages.masks_by_own_number)
    assert first(result) == ("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj", 1)
    assert {finding.module for finding in result.findings} == {f"model.layers.{i}.self_attn" for i in (1, 2)}
