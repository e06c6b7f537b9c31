"""Text that two ranks generate is judged as one rank's is, and a cache that one of them spoils is named."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.families import FAMILIES
from validator.checks.findings import Check, Verdict
from validator.report.result import Result
from validator.target_check import check_target

PORT = """
import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

CHECKPOINT = {checkpoint!r}


def load(**options):
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, local_files_only=True, **options).eval()


def reference():
    return load()


def candidate():
    ranks = torch.distributed.get_world_size()
    split = DistributedConfig(tp_plan="auto", tp_size=ranks)
    return load(dtype=torch.bfloat16, distributed_config=split)


def inputs():
    ids = torch.arange(3, 19).view(2, 8)
    return {{"input_ids": ids, "attention_mask": torch.ones_like(ids)}}


@torch.no_grad()
def run(model, inputs):
    return model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
"""


def checked(family: str, folder: Path, *, plant: str | None = None) -> Result:
    """Judge a model of one layer that two ranks generate with."""
    found = FAMILIES[family]
    config = found.config(False)
    config.num_hidden_layers = 1
    model = AutoModelForCausalLM.from_config(config)
    found.fill(model, torch.Generator().manual_seed(0))
    model.save_pretrained(folder / "checkpoint")
    port = folder / "port.py"
    port.write_text(PORT.format(checkpoint=str(folder / "checkpoint")), encoding="utf-8")
    return check_target(str(port), nproc=2, timeout_s=500, plant=plant)


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3-moe", marks=pytest.mark.slow)])
def test_text_that_two_ranks_generate_is_aligned(family: str, tmp_path: Path) -> None:
    result = checked(family, tmp_path)
    assert result.verdict is Verdict.ALIGNED, str(result)
    assert result.outcome.run["candidate"]["parallelism"]["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_a_cache_that_one_rank_spoils_is_named_with_the_rank_and_the_step(
    family: str, tmp_path: Path
) -> None:
    found = checked(family, tmp_path, plant="step-kv-scale:layer=0,factor=1.25,rank=1").findings[0]
    assert found.check is Check.WIRING
    assert (found.module, found.into) == ("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj")
    assert (found.rank, found.step and found.step.number) == (1, 2)
