"""The trained models are those that their provenance describes, and as peaked as real ones."""

import hashlib
import inspect
import json
import math
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from validator.content import find_model

NAMES = ["tiny-dense", "tiny-moe"]
NORMS = {"tiny-dense": 9, "tiny-moe": 17}  # a layer of Qwen3-MoE has one for queries and one for keys as well
REPO_BUDGET_BYTES = 8_000_000  # of all trained models
UNIFORM_NATS = math.log(256)  # what a model that knows nothing pays for a byte


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    return find_model(request.param)


@pytest.fixture(scope="module")
def provenance(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "provenance.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    # Only the eager kernel gives attention probabilities.
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def untrained(model: PreTrainedModel) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(model.config).eval()


@pytest.fixture(scope="module")
def moe() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(find_model("tiny-moe"), dtype=torch.bfloat16).eval()


@pytest.fixture(scope="module")
def ids() -> Tensor:
    """`[1, 256]`: the first bytes of the source of `textwrap.dedent`."""
    source = inspect.getsource(textwrap.dedent).encode()
    return torch.tensor([list(source[:256])])


def test_no_trained_model_is_left_out_here(folder: Path) -> None:
    assert sorted(path.name for path in folder.parent.iterdir() if (path / "config.json").exists()) == NAMES


def test_the_weights_are_the_ones_that_the_provenance_describes(
    folder: Path, provenance: dict[str, Any]
) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == provenance["sha256"]


def test_the_command_of_the_provenance_names_a_script_and_the_model(
    folder: Path, provenance: dict[str, Any]
) -> None:
    script, name, options = provenance["made_by"].split(maxsplit=2)
    assert (folder.parents[2] / script).is_file()
    assert name == folder.name
    assert options == " ".join(f"--{key} {provenance[key]}" for key in ("steps", "seed", "threads"))


def test_every_provenance_has_the_same_fields(provenance: dict[str, Any]) -> None:
    first = json.loads((find_model(NAMES[0]) / "provenance.json").read_text(encoding="utf-8"))
    assert list(provenance) == list(first)


def test_a_checkpoint_is_small_enough_to_commit(folder: Path) -> None:
    assert _size_bytes(folder) < 3_000_000


def test_all_checkpoints_together_are_small_enough_to_commit() -> None:
    assert sum(_size_bytes(find_model(name)) for name in NAMES) < REPO_BUDGET_BYTES


def test_the_architecture_has_what_a_port_gets_wrong(
    model: PreTrainedModel, provenance: dict[str, Any]
) -> None:
    config = model.config
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)
    assert config.vocab_size == 256
    assert not config.tie_word_embeddings
    assert model.num_parameters() == provenance["parameters"]


def test_the_moe_routes_each_token_to_two_of_eight_experts_by_weights_that_sum_to_one(
    moe: PreTrainedModel,
) -> None:
    config = moe.config
    assert config.architectures == ["Qwen3MoeForCausalLM"]
    assert (config.num_experts, config.num_experts_per_tok, config.norm_topk_prob) == (8, 2, True)
    assert config.head_dim * config.num_attention_heads != config.hidden_size


def test_every_stored_tensor_is_bfloat16(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_every_norm_has_learned_a_gain_of_its_own(folder: Path) -> None:
    # A gain of 1 everywhere can't show a port that forgets the gain, or deals it in the wrong order.
    gains = {name: t.float() for name, t in load_file(folder / "model.safetensors").items() if t.ndim == 1}
    assert len(gains) == NORMS[folder.name]
    for name, gain in gains.items():
        assert (gain - 1).abs().mean() > 0.03, name
        assert gain.std() > 0.03, name


def test_it_was_trained_to_a_low_loss_on_text_that_it_has_not_seen(provenance: dict[str, Any]) -> None:
    assert provenance["held_out_nats_per_byte"] < 1.4


@torch.no_grad()
def test_it_reads_python_far_better_than_an_untrained_model_and_than_the_frequencies_of_its_bytes(
    model: PreTrainedModel, untrained: PreTrainedModel, ids: Tensor
) -> None:
    assert _loss(untrained, ids) > UNIFORM_NATS - 0.5
    counts = ids.flatten().bincount().double()
    unigram_nats = (
        torch.special.entr(counts / counts.sum()).sum().item()
    )  # the best that any unigram could do
    assert _loss(model, ids) < min(2.0, unigram_nats - 0.5)


@torch.no_grad()
def test_its_logits_are_peaked(model: PreTrainedModel, ids: Tensor) -> None:
    probabilities = model(input_ids=ids).logits.float().softmax(-1)
    # 1/256 is flat; here half of the next bytes are all but clear.
    assert probabilities.amax(-1).median() > 0.3


@torch.no_grad()
def test_most_heads_look_at_one_key_above_all_which_no_untrained_head_does(
    model: PreTrainedModel, untrained: PreTrainedModel, ids: Tensor
) -> None:
    # Some heads average over the text, and should; so the bound is on the median head.
    assert _sharpness_per_head(model, ids).median() > 0.3
    assert _sharpness_per_head(untrained, ids).max() < 0.1


@torch.no_grad()
def test_every_expert_of_every_layer_gets_tokens_of_a_text_and_none_gets_most(
    moe: PreTrainedModel, ids: Tensor
) -> None:
    router_logits = moe(input_ids=ids, output_router_logits=True).router_logits
    assert len(router_logits) == moe.config.num_hidden_layers
    for logits in router_logits:
        chosen = logits.topk(moe.config.num_experts_per_tok).indices
        tokens = chosen.flatten().bincount(minlength=moe.config.num_experts)
        assert tokens.min() >= 5
        assert tokens.max() <= len(logits) // 2


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@torch.no_grad()
def _loss(model: PreTrainedModel, ids: Tensor) -> float:
    return model(input_ids=ids, labels=ids).loss.item()


@torch.no_grad()
def _sharpness_per_head(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """`[heads]`: what half of the last layer's queries give to one key, of the 128 or more that they see."""
    last = model(input_ids=ids, output_attentions=True).attentions[-1].float()
    return last[0, :, 127:].amax(-1).median(-1).values
