"""The search on deep models of transformers: its operator stage, runs of several steps, and several ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.bisecting.deep_port import write_deep_net, write_deep_port
from validator.checks.findings import Finding, Verdict
from validator.report.bisection import BisectionResult
from validator.target_bisect import bisect_target
from validator.target_check import check_target

GENERATES = """

def run(model, inputs):
    return model.generate(
        **inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None
    )


def inputs():
    generator = torch.Generator().manual_seed(1000 + SEED)
    return {"input_ids": torch.randint(256, (BATCH, TOKENS), generator=generator)}
"""

SPLIT = """

def candidate():
    import torch.distributed as dist

    model, rank, ranks = Net().to(torch.bfloat16), dist.get_rank(), dist.get_world_size()

    def summed(module, args, output):
        dist.all_reduce(output)

    with torch.no_grad():
        for layer in model.layers:
            layer.up.weight = nn.Parameter(layer.up.weight.chunk(ranks, 0)[rank].clone())
            layer.up.bias = nn.Parameter(layer.up.bias.chunk(ranks, 0)[rank].clone())
            layer.down.weight = nn.Parameter(layer.down.weight.chunk(ranks, 1)[rank].clone())
            layer.down.register_forward_hook(summed)
        if rank == 1:
            layer = model.layers[5]
            layer.up.register_forward_hook(lambda module, args, output: output * 1.25)
    return model
"""


def first(result: BisectionResult) -> Finding:
    assert result.first_divergence is not None, str(result)
    return result.first_divergence


def searched(port: Path, **options: Any) -> BisectionResult:
    return bisect_target(str(port), **options)


ATTENTION = {"scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"}


@pytest.mark.parametrize(
    ("plant", "module", "ops"),
    [
        ("attn-scale:layer=4,factor=1.5", "model.layers.4.self_attn", ATTENTION),
        pytest.param(
            "norm-eps:layer=2,eps=0.05",
            "model.layers.2.input_layernorm",
            {"add"},
            marks=pytest.mark.slow,
        ),
        ("act-gelu:layer=3", "model.layers.3.mlp.act_fn", {"silu", "gelu"}),
    ],
    ids=["attn-scale", "norm-eps", "act-gelu"],
)
def test_a_planted_fault_is_named_with_its_operator(
    plant: str, module: str, ops: set[str], tmp_path: Path
) -> None:
    result = searched(write_deep_port(tmp_path, layers=6, tokens=16), plant=plant)
    found = first(result)
    assert found.module == module
    assert found.op is not None, str(result)
    assert found.op in ops
    assert [step.name for step in result.path][-1] == "operators"
    assert any("a fault was planted" in note for note in result.outcome.notes)


def test_a_fault_of_decode_steps_is_named_as_check_names_it(tmp_path: Path) -> None:
    port = write_deep_port(tmp_path, layers=4, tokens=12, changes=GENERATES)
    plant = "step-kv-evicted:layer=2,first=8,tokens=2"
    result = searched(port, plant=plant)
    found = first(result)
    assert (found.module, found.into) == (
        "model.layers.2.self_attn",
        "model.layers.2.self_attn.o_proj",
    )
    checked = check_target(str(port), plant=plant).first_divergence
    assert checked is not None
    assert (found.call, found.step, found.where) == (checked.call, checked.step, checked.where)
    assert "first in step" in found.summary
    assert [step.name for step in result.path][-1] == "operators"
    assert found.op == "scaled_dot_product_attention"


def test_healthy_decode_steps_are_aligned(tmp_path: Path) -> None:
    result = searched(write_deep_port(tmp_path, layers=3, tokens=12, changes=GENERATES))
    assert (result.verdict, result.findings) == (Verdict.ALIGNED, ()), str(result)


def test_padding_is_not_judged_inside_of_blocks(tmp_path: Path) -> None:
    padded = """

unpadded = inputs


def inputs():
    given = unpadded()
    mask = torch.ones_like(given["input_ids"])
    mask[0, :7] = 0
    return {**given, "attention_mask": mask}


def spoilt(module, args, output):
    output[0][0, :7] += 1.0
    return output


plain = candidate


def candidate(dtype=torch.bfloat16):
    model = plain(dtype)
    model.model.layers[1].self_attn.register_forward_hook(spoilt)
    return model
"""
    result = searched(write_deep_port(tmp_path, layers=3, tokens=16, changes=padded))
    assert (result.verdict, result.findings) == (Verdict.ALIGNED, ()), str(result)


def test_a_fault_of_one_of_two_ranks_is_found(tmp_path: Path) -> None:
    result = searched(write_deep_net(tmp_path, layers=8, changes=SPLIT), nproc=2)
    found = first(result)
    assert (found.module, found.rank) == ("layers.5.up", 1)
    assert result.cost.runs == sum(step.runs for step in result.path) <= 3
