"""The trained model is the one its provenance describes, and its logits are as peaked as real ones."""

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
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from validator.content import find_model

UNIFORM_NATS = math.log(256)  # what a model that knows nothing pays for a byte


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_model("tiny-dense")


@pytest.fixture(scope="module")
def provenance(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "provenance.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(folder: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


@pytest.fixture(scope="module")
def ids() -> Tensor:
    """`[1, 256]`: the first bytes of the source of `textwrap.dedent`."""
    source = inspect.getsource(textwrap.dedent).encode()
    return torch.tensor([list(source[:256])])


def test_the_weights_are_the_ones_that_the_provenance_describes(
    folder: Path, provenance: dict[str, Any]
) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == provenance["sha256"]


def test_the_checkpoint_is_small_enough_to_commit(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3_000_000


def test_the_architecture_has_what_a_port_gets_wrong(
    model: LlamaForCausalLM, provenance: dict[str, Any]
) -> None:
    config = model.config
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)
    assert config.vocab_size == 256
    assert not config.tie_word_embeddings
    assert model.num_parameters() == provenance["parameters"]


def test_every_stored_tensor_is_bfloat16(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_every_norm_has_learned_a_gain_of_its_own(folder: Path) -> None:
    # A gain of 1 everywhere can't show a port that forgets the gain, or deals it in the wrong order.
    gains = {name: t.float() for name, t in load_file(folder / "model.safetensors").items() if t.ndim == 1}
    assert len(gains) == 9
    for name, gain in gains.items():
        assert (gain - 1).abs().mean() > 0.03, name
        assert gain.std() > 0.03, name


def test_it_was_trained_to_a_low_loss_on_text_that_it_has_not_seen(provenance: dict[str, Any]) -> None:
    assert provenance["held_out_nats_per_byte"] < 1.4


def test_it_reads_python_far_better_than_an_untrained_model(model: LlamaForCausalLM, ids: Tensor) -> None:
    torch.manual_seed(0)
    untrained = LlamaForCausalLM(LlamaConfig(**model.config.to_dict())).eval()
    assert _loss(untrained, ids) > UNIFORM_NATS - 0.5
    assert _loss(model, ids) < 2.0


@torch.no_grad()
def test_its_logits_are_peaked(model: LlamaForCausalLM, ids: Tensor) -> None:
    probabilities = model(input_ids=ids).logits.float().softmax(-1)
    # 1/256 is flat; here half of the next bytes are all but clear.
    assert probabilities.amax(-1).median() > 0.3


@torch.no_grad()
def _loss(model: LlamaForCausalLM, ids: Tensor) -> float:
    return model(input_ids=ids, labels=ids).loss.item()
