"""A planted fault changes what it says, and is refused where it doesn't belong."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.models import checkpoint, inputs, load_candidate
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.tp == 1], ids=lambda fault: fault.fault)
def test_planting_changes_what_the_model_computes(fault: Expectation, folder: Path) -> None:
    trial = trial_of(fault)
    path, given = checkpoint(trial.setup, folder), inputs(trial.setup)
    with torch.no_grad():
        healthy = load_candidate(trial.setup, path)(**given).logits
        spoiled = trial.candidate(path)(**given).logits
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
        (qwen3_moe, "tp-shared-overcount", "can't be planted: layers[1].mlp has no shared expert"),
        (llama, "pixels-raster", "it has no model.visual.spatial_merge_size"),
    ],
)
def test_a_fault_that_does_not_belong_is_refused(
    build: Callable[[], nn.Module], text: str, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text).plant(build())
    assert message in str(raised.value)


def test_a_fault_with_a_rank_is_planted_on_that_rank_alone(rank_pool: Callable[[int], RankPool]) -> None:
    assert rank_pool(2).run(_epsilon) == [1e-6, 0.5]


def _epsilon(rank: int, world_size: int) -> float:
    model = llama()
    parse("norm-eps:eps=0.5,rank=1").plant(model)
    epsilon: float = model.model.layers[1].input_layernorm.variance_epsilon
    return epsilon
