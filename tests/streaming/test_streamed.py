"""A streamed model is the loaded one, and gives the same result, but for its memory."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import validator
from tests.families import FAMILIES
from validator.content import find_model
from validator.errors import TargetError, UsageError
from validator.faults import parse
from validator.pretrained import load
from validator.streaming.deferred import DeferredParameter
from validator.streaming.models import streamed

FILE = "model.safetensors"
TRAINED = ("tiny-dense", "tiny-moe")
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
INPUTS = {"input_ids": torch.arange(16).view(2, 8) * 5 % 64}


def write(folder: Path, kind: str, **options: Any) -> Path:
    torch.manual_seed(0)
    if kind == "moe":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
        config: Any = transformers.Qwen3MoeConfig(**SIZES, **experts)
        model: nn.Module = transformers.Qwen3MoeForCausalLM(config)
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **options))
    model.save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_and_buffer_is_the_loaded_models(name: str) -> None:
    folder = find_model(name)
    loaded, deferred = load(folder, dtype="auto"), streamed(folder)
    parameters = dict(deferred.named_parameters(remove_duplicate=False))
    assert list(parameters) == [key for key, _ in loaded.named_parameters(remove_duplicate=False)]
    for key, parameter in loaded.named_parameters(remove_duplicate=False):
        assert isinstance(parameters[key], DeferredParameter), key
        assert parameters[key].dtype == parameter.dtype
        assert torch.equal(parameter, parameters[key]), key
    for key, buffer in loaded.named_buffers():
        assert torch.equal(buffer, deferred.get_buffer(key)), key


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_logits_have_the_same_bits(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, kind)
    with torch.no_grad():
        expected = load(folder, dtype="auto").eval()(**INPUTS).logits
        assert torch.equal(streamed(folder).eval()(**INPUTS).logits, expected)


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("is_faulty", [False, True], ids=["healthy", "faulty"])
def test_a_check_says_the_same_of_both(tmp_path: Path, kind: str, is_faulty: bool) -> None:
    folder = write(tmp_path / "checkpoint", kind)
    candidate = load(folder, dtype=torch.bfloat16).eval()
    if is_faulty:
        candidate.model.layers[1].self_attn.o_proj.weight.data[3] *= 1.5  # type: ignore[index, union-attr]
    with validator.capture(candidate, tmp_path / "candidate.h5"), torch.no_grad():
        candidate(**INPUTS)
    said = [
        json.dumps(
            validator.check(
                reference=reference, candidate=tmp_path / "candidate.h5", inputs=INPUTS
            ).to_json(),
            sort_keys=True,
            default=str,
        )
        for reference in (load(folder, dtype="auto"), streamed(folder))
    ]
    assert json.loads(said[0])["verdict"] == ("divergent" if is_faulty else "aligned")
    assert said[0] == said[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("plant", [None, "attn-scale:layer=1"], ids=["healthy", "faulty"])
def test_a_check_says_the_same_of_trained_models(tmp_path: Path, name: str, plant: str | None) -> None:
    folder = find_model(name)
    candidate = load(folder, dtype=torch.bfloat16).eval()
    if plant is not None:
        parse(plant).plant(candidate)
    inputs = {"input_ids": torch.arange(64).view(2, 32)}
    said = [
        validator.check(reference=reference, candidate=candidate, inputs=inputs).to_json()
        for reference in (load(folder, dtype="auto"), streamed(folder))
    ]
    assert said[0] == said[1]


def test_tied_weights_are_one_parameter(tmp_path: Path) -> None:
    model = streamed(write(tmp_path, "dense", tie_word_embeddings=True))
    assert model.lm_head.weight is model.model.embed_tokens.weight  # type: ignore[union-attr]


def test_what_is_known_of_a_parameter_is_known_without_its_values() -> None:
    parameter = counting(reads := [])
    owner = nn.Module()
    owner.weight = parameter
    assert isinstance(parameter, nn.Parameter)
    assert (parameter.shape, parameter.dtype, parameter.device.type) == ((3, 2), torch.float32, "cpu")
    assert (parameter.numel(), parameter.dim(), parameter.size(0), parameter.is_floating_point()) == (
        6,
        2,
        3,
        True,
    )
    assert dict(owner.named_parameters())["weight"] is parameter
    assert not reads


def test_an_operator_reads_a_parameter_and_keeps_nothing_of_it() -> None:
    parameter = counting(reads := [])
    assert torch.nn.functional.linear(torch.ones(1, 2), parameter).tolist() == [[1.0, 5.0, 9.0]]
    assert parameter[1].tolist() == [2.0, 3.0]
    assert type(parameter.T) is Tensor
    assert len(reads) == 3
    assert all(value() is None for value in reads)


def rewritten(folder: Path, **changes: Tensor | None) -> Path:
    """Change tensors of a checkpoint, and leave out those that are None."""
    tensors = {name: x for name, x in (load_file(folder / FILE) | changes).items() if x is not None}
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("loader", [load, streamed])
def test_a_weight_of_another_shape_is_refused(tmp_path: Path, loader: Callable[[Path], nn.Module]) -> None:
    folder = rewritten(write(tmp_path, "dense"), **{"model.norm.weight": torch.ones(31)})
    with pytest.raises(
        TargetError, match=r"model.norm.weight .*\[31\].*\[32\]: its config.json describes an"
    ):
        loader(folder)


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("loader", [load, streamed])
def test_weights_that_the_checkpoint_lacks_are_refused_by_name(
    tmp_path: Path, kind: str, loader: Callable[[Path], nn.Module]
) -> None:
    folder = write(tmp_path, kind)
    lost = [name for name in load_file(folder / FILE) if "layers.1.self_attn" in name and "proj" in name]
    lost = sorted([*lost, "model.layers.0.input_layernorm.weight"])
    rewritten(folder, **dict.fromkeys(lost))
    with pytest.raises(
        TargetError, match=rf"lacks {', '.join(lost[:4])} and 1 more, which transformers would make up: save"
    ):
        loader(folder)


@pytest.mark.parametrize("loader", [load, streamed])
def test_a_buffer_that_the_checkpoint_lacks_begins_as_its_code_makes_it(
    tmp_path: Path, loader: Callable[[Path], nn.Module]
) -> None:
    made = transformers.AutoModelForCausalLM.from_config(FAMILIES["deepseek-v3"].config(False))
    made.save_pretrained(tmp_path)
    lost = [name for name in load_file(tmp_path / FILE) if name.endswith("e_score_correction_bias")]
    assert lost
    rewritten(tmp_path, **dict.fromkeys(lost))
    buffers = dict(loader(tmp_path).named_buffers())
    assert all(torch.equal(buffers[name], torch.zeros_like(buffers[name])) for name in lost)


@pytest.mark.parametrize("loader", [load, streamed])
def test_a_tied_weight_may_be_left_out(tmp_path: Path, loader: Callable[[Path], nn.Module]) -> None:
    folder = write(tmp_path, "dense", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / FILE)
    loader(folder)
    rewritten(folder, **{"model.embed_tokens.weight": None})
    with pytest.raises(TargetError, match=r"lacks .*model\.embed_tokens\.weight"):
        loader(folder)


def test_a_format_that_loading_does_not_dequantise_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, "dense")
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(UsageError, match="quantised as 'gptq', which can't be dequantised"):
        streamed(folder)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no \*.safetensors"):
        streamed(tmp_path)


def counting(reads: list[Any]) -> DeferredParameter:
    """Return a parameter `[3, 2]` that notes each of its reads."""

    def read() -> Tensor:
        values = torch.arange(6.0).view(3, 2).clone()
        reads.append(weakref.ref(values))
        return values

    return DeferredParameter(read, shape=torch.Size((3, 2)), dtype=torch.float32)
