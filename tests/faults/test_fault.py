"""A planted fault changes what it says, and is refused where it doesn't belong."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.families import FAMILIES
from tests.models import checkpoint, load_candidate, run
from tests.planted import FAULTS, Expectation
from tests.ranks import RankPool
from tests.trials import trial_of
from validator.errors import UsageError
from validator.faults import parse

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def gemma2() -> Any:
    torch.manual_seed(0)
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZES, query_pre_attn_scalar=8)).eval()


def qwen3_moe() -> Any:
    torch.manual_seed(0)
    sizes = SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes)).eval()


def gelu() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, hidden_act="gelu")).eval()


def family(name: str) -> Any:
    """Build a model of the families that faults are tried in."""
    known = FAMILIES[name]
    return getattr(transformers, known.auto).from_config(known.config(False)).eval()


def deepseek_v3() -> Any:
    """Build a DeepSeek-V3 whose constants are those that hide a fault of them."""
    config = FAMILIES["deepseek-v3"].config(False)
    config.routed_scaling_factor = 1.0
    config.rope_parameters |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    return transformers.DeepseekV3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.tp == 1], ids=lambda fault: fault.fault)
def test_planting_changes_what_the_model_computes(fault: Expectation, folder: Path) -> None:
    trial = trial_of(fault)
    path = checkpoint(trial.setup, folder)
    with torch.no_grad():
        healthy = run(trial.setup, load_candidate(trial.setup, path))
        spoiled = run(trial.setup, trial.candidate(path))
    assert not torch.equal(spoiled, healthy)


def test_a_fault_is_planted_in_its_layer_alone() -> None:
    model = llama()
    scale = model.model.layers[0].self_attn.scaling
    parse("attn-scale:layer=2,factor=1.5").plant(model)
    assert [layer.self_attn.scaling / scale for layer in model.model.layers] == [1.0, 1.0, 1.5]


def test_a_row_of_a_weight_is_scaled_exactly_and_no_other() -> None:
    model, healthy = llama(), llama()
    parse("weight-row:layer=0,row=5,factor=2").plant(model)
    expected = healthy.model.layers[0].mlp.up_proj.weight.detach().clone()
    expected[5] *= 2
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, expected)


@pytest.mark.parametrize(
    ("build", "text", "message"),
    [
        (
            llama,
            "attn-no-softcap",
            "attn-no-softcap:layer=1 can't be planted in LlamaForCausalLM: "
            "it has no layers[1].self_attn.attn_logit_softcapping",
        ),
        (llama, "attn-scale:layer=3", "layer=3 is not in LlamaForCausalLM: it has 3 layers, 0 to 2"),
        (llama, "weight-row:row=48", "row=48 is not in the weight: it has 48 rows, 0 to 47"),
        (llama, "layer-twice:layer=0", "layer=0 has no layer before it"),
        (gemma2, "norm-eps", "it has no layers[1].input_layernorm.variance_epsilon"),
        (gemma2, "residual-after-norm", "it has layers[1].pre_feedforward_layernorm, and the fault would"),
        (
            partial(nn.Linear, 2, 2),
            "attn-scale",
            "no fault can be planted in Linear: none of its modules has",
        ),
        (llama, "attn-scale:rank=1", "needs 2 ranks or more, and the run has 1: raise --nproc"),
        (llama, "tp-reduced-twice", "tp-reduced-twice:layer=1 needs 2 ranks or more, and the run has 1"),
        (llama, "tp-shared-overcount", "it has no layers[1].mlp.gate"),
        (qwen3_moe, "tp-shared-overcount", "its layers[1].mlp has no shared expert"),
        (
            partial(family, "gpt-oss"),
            "residual-after-norm",
            "it has layers[1].mlp.router, and the fault would",
        ),
        (
            partial(family, "granite"),
            "residual-after-norm",
            "it has layers[1].residual_multiplier, and the fault would",
        ),
        (llama, "pixels-raster", "it has no model.visual.spatial_merge_size"),
    ],
)
def test_a_fault_that_does_not_belong_is_refused(
    build: Callable[[], nn.Module], text: str, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text).plant(build())
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("build", "text", "reason"),
    [
        (llama, "rope-unscaled", "its rotary frequencies are not scaled"),
        (llama, "rope-yarn-collapsed", "its rotary tables have no scale, or a scale of 1"),
        (
            llama,
            "norm-half-squares",
            "it is float32, where the fault changes nothing: give --dtype bfloat16 or ",
        ),
        (lambda: llama().bfloat16(), "gemm-tf32", "it is bfloat16, where the fault changes nothing"),
        (lambda: llama().bfloat16(), "head-bf16", "it is bfloat16, where the fault changes nothing"),
        (gelu, "act-gelu", "its activation is the exact GELU already"),
        (gemma2, "head-is-embedding", "its head is tied to the embedding"),
        (qwen3_moe, "moe-no-renorm", "its weights are not divided by their sum"),
        (qwen3_moe, "tp-k-norm-overcount", "its norm of the keys takes one head at a time"),
        (qwen3_moe, "tp-k-norm-slice", "its norm of the keys takes one head at a time"),
        (deepseek_v3, "moe-unscaled", "the scaling of its routed experts is 1"),
        (deepseek_v3, "rope-yarn-field", "its `mscale` and `mscale_all_dim` are the same"),
        (deepseek_v3, "rope-interleaved", "its rotary embedding pairs neighbouring channels already"),
        (
            deepseek_v3,
            "rope-theta",
            "its rotary frequencies are scaled, and the fault would compute without that",
        ),
        (deepseek_v3, "layer-twice", "layers[1] has other weights than layers[0]: give another layer"),
        (partial(family, "qwen2.5-vl"), "rope-bf16-tables", "its tokens have three positions each"),
    ],
)
def test_a_fault_that_would_change_nothing_is_refused_with_the_reason(
    build: Callable[[], nn.Module], text: str, reason: str
) -> None:
    model, planned = build(), parse(text)
    with pytest.raises(UsageError) as raised:
        planned.plant(model)
    assert f"{planned} can't be planted in {type(model).__name__}: {reason}" in str(raised.value)


def test_a_fault_of_a_window_that_hides_nothing_says_so_when_the_model_runs() -> None:
    model = gemma2()
    parse("attn-no-window:layer=0").plant(model)
    with pytest.raises(UsageError, match=r"a window of 4096 hides nothing of 8 tokens.*: give longer inputs"):
        model(input_ids=torch.arange(8)[None])


def test_pairs_of_neighbours_need_tables_for_the_whole_head() -> None:
    model = family("gpt-oss")
    parse("rope-interleaved").plant(model)
    with pytest.raises(
        UsageError, match="needs rotary tables for all 16 channels of a head, and these have 8"
    ):
        model(input_ids=torch.arange(8)[None])


def test_a_fault_with_a_rank_is_planted_on_that_rank_alone(rank_pool: Callable[[int], RankPool]) -> None:
    assert rank_pool(2).run(_epsilon) == [1e-6, 0.5]


def _epsilon(rank: int, world_size: int) -> float:
    model = llama()
    parse("norm-eps:eps=0.5,rank=1").plant(model)
    epsilon: float = model.model.layers[1].input_layernorm.variance_epsilon
    return epsilon
