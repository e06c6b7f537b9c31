"""Ports with other modules than the reference's: healthy ones are judged everywhere, faults are localised."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import validator
from tests.families import FAMILIES, VOCABULARY
from tests.parallel import ports
from tests.parallel.ports_names import (
    NAMELESS,
    Attention,
    Layer,
    Norm,
    Port,
    SeparateExperts,
    Words,
    engine_part,
    fused,
    swap_keys_and_values,
)
from tests.ranks import RankPool
from validator.report.result import Result

INPUTS = {"input_ids": torch.randint(VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(5))}


def reference(family: str, layers: int = 2) -> nn.Module:
    """Return a small model whose weights let faults show."""
    config = FAMILIES[family].config(False)
    config.num_hidden_layers = layers
    config.use_cache = False
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    config._attn_implementation = "sdpa"
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    FAMILIES[family].fill(model, torch.Generator().manual_seed(0))
    return model.eval()


def check(ref: nn.Module, candidate: nn.Module, **options: Any) -> Result:
    return validator.check(reference=ref, candidate=candidate, inputs=INPUTS, **options)


def assert_aligned(result: Result) -> None:
    """Require that nothing was found, and that every module of the reference was looked at."""
    assert result.verdict == "aligned", str(result)
    assert result.outcome.unchecked == ()


def places(result: Result) -> list[tuple[str, str | None, str]]:
    """Return where the findings are, and of which check."""
    return [(f.module.removeprefix("model."), f.into, f.check.value) for f in result.outcome.findings]


@pytest.mark.parametrize("family", ["qwen3", "qwen2"], ids=["with head norms", "with biases"])
def test_a_fused_port_is_judged_at_every_edge_of_the_reference(family: str) -> None:
    ref = reference(family)
    result = check(ref, Port(ref))
    assert_aligned(result)
    judged = {(j.module, j.into, j.candidate_module) for j in result.outcome.judgements}
    for layer in ("model.layers.0", "model.layers.1"):
        attention = f"{layer}.self_attn"
        for part in ("q_proj", "k_proj", "v_proj"):
            assert (f"{attention}.{part}", None, f"{attention}.qkv_proj") in judged
            assert (attention, f"{attention}.{part}", attention) in judged
        for part in ("gate_proj", "up_proj"):
            assert (f"{layer}.mlp.{part}", None, f"{layer}.mlp.gate_up_proj") in judged
        assert (layer, None, layer) in judged
        assert (layer, f"{layer}.post_attention_layernorm", layer) in judged
    parameters = {(j.module, j.path) for j in result.outcome.judgements if j.check.value == "parameter"}
    leaves = {"weight", "bias"} if family == "qwen2" else {"weight"}
    assert {("model.layers.1.self_attn.k_proj", leaf) for leaf in leaves} <= parameters


class Wrapper(nn.Module):
    """Holds another module, as activation checkpointing does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self._checkpoint_wrapped_module(*args, **kwargs)


def test_names_that_say_nothing_are_found_by_structure_and_values() -> None:
    ref = reference("qwen3")
    port = Port(ref, NAMELESS, layer=lambda layer, words: Wrapper(Layer(layer, words)))
    result = check(ref, port)
    assert_aligned(result)
    (note,) = [note for note in result.outcome.notes if note.startswith("matched by structure")]
    inner = "transformer.h.*._checkpoint_wrapped_module"
    assert f"'{inner}.ln_2': 'model.layers.*.post_attention_layernorm'" in note
    assert f"'{inner}.ff.c_fc': 'model.layers.*.mlp.{{gate_proj,up_proj}}'" in note
    judged = {j.module: j.candidate_module for j in result.outcome.judgements}
    assert judged["model.layers.1.self_attn.v_proj"].endswith("attn.c_attn")
    assert judged["model.layers.1.mlp.down_proj"].endswith("ff.c_proj")


class WrongSlice(Attention):
    """Takes the values from where the keys end, less one head."""

    def parts(self, whole: Tensor) -> list[Tensor]:
        """Take the projection's output apart."""
        query, key, value = super().parts(whole)
        start = query.shape[-1] + key.shape[-1] - self.head_size
        return [query, key, whole[..., start : start + value.shape[-1]]]


class WrongNorm(Norm):
    """Normalises what is added in place of the sum."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Normalise `[B, S, D]`."""
        return self.normed(x), x + residual


class StaleNorm(Norm):
    """Returns the residual as it was."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Normalise `[B, S, D]`."""
        return self.normed(x + residual), residual


class TwiceLayer(Layer):
    """Adds the residual before the norm that adds it."""

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None, position_embeddings: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return what the MLP adds, and what it is to be added to."""
        hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(hidden_states, position_embeddings) + residual
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


def faulty_layer(ref: nn.Module, words: Words) -> nn.Module:
    """Return the layer with the fault that its number stands for."""
    number = ref.self_attn.layer_idx
    layer = (TwiceLayer if number == 2 else Layer)(ref, words)
    if number == 0:
        layer.self_attn = WrongSlice(ref.self_attn, words)
    if number == 1:
        layer.input_layernorm = WrongNorm(ref.input_layernorm)
    if number == 3:
        layer.post_attention_layernorm = StaleNorm(ref.post_attention_layernorm)
    return layer


def test_faults_of_the_code_are_named_in_the_references_words() -> None:
    ref = reference("qwen3", layers=4)
    result = check(ref, Port(ref, layer=faulty_layer))
    assert places(result) == [
        ("layers.0.self_attn", "model.layers.0.self_attn.o_proj", "wiring"),
        ("layers.1.input_layernorm", None, "function"),
        ("layers.2", "model.layers.2.post_attention_layernorm", "wiring"),
        ("layers.2", None, "wiring"),
        ("layers.3", None, "wiring"),
    ]


def test_faults_of_fused_weights_are_named_by_the_part() -> None:
    ref = reference("qwen3")
    port = Port(ref)
    with torch.no_grad():
        first, second = (layer for layer in port.model.layers)
        attention, mlp = ref.model.layers[0].self_attn, ref.model.layers[1].mlp
        swapped = fused(attention.k_proj, attention.q_proj, attention.v_proj)
        first.self_attn.qkv_proj.weight.copy_(swapped.weight)
        second.mlp.gate_up_proj.weight.copy_(fused(mlp.up_proj, mlp.gate_proj).weight)
    result = check(ref, port)
    found = [place for place in places(result) if place[2] == "parameter"]
    assert [module for module, _, _ in found] == [
        "layers.0.self_attn.q_proj",
        "layers.0.self_attn.k_proj",
        "layers.1.mlp.gate_proj",
        "layers.1.mlp.up_proj",
    ]
    assert result.first_divergence is not None
    assert result.first_divergence.candidate_module == "model.layers.0.self_attn.qkv_proj"


OLD, NEW = ("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")


def separated(ref: nn.Module, words: tuple[str, ...], **options: Any) -> nn.Module:
    """Return a copy with a list of experts in each layer, in bfloat16."""
    port = copy.deepcopy(ref)
    for layer in port.model.layers:
        layer.mlp = SeparateExperts(layer.mlp, words, **options)
    for parameter in port.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return port


@pytest.mark.parametrize("words", [NEW, OLD], ids=["gate up down", "w1 w3 w2"])
def test_separate_experts_are_the_stacked_ones(words: tuple[str, ...]) -> None:
    ref = reference("qwen3-moe", layers=1)
    result = check(ref, separated(ref, words))
    assert_aligned(result)
    judged = {(j.module, j.path) for j in result.outcome.judgements if j.check.value == "parameter"}
    assert {("model.layers.0.mlp.experts", leaf) for leaf in ("gate_up_proj", "down_proj")} <= judged


def test_experts_in_the_wrong_order_differ_in_their_stack() -> None:
    ref = reference("qwen3-moe", layers=1)
    result = check(ref, separated(ref, NEW, order=lambda number: number ^ 1))
    found = [(f.module, f.path) for f in result.outcome.findings if f.check.value == "parameter"]
    assert found == [
        ("model.layers.0.mlp.experts", "gate_up_proj"),
        ("model.layers.0.mlp.experts", "down_proj"),
    ]


def test_stacked_experts_are_the_references_separate_ones() -> None:
    stacked = reference("qwen3-moe", layers=1)
    ref = separated(stacked, NEW).float()
    for parameter in stacked.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    result = check(ref, stacked)
    assert_aligned(result)
    judged = {j.module for j in result.outcome.judgements if j.check.value == "parameter"}
    assert {f"model.layers.0.mlp.experts.{i}.up_proj" for i in range(8)} <= judged


def test_braces_in_names_say_what_nothing_else_does() -> None:
    ref = reference("qwen2", layers=1)
    words = Words(qkv="everything")
    with_names = check(
        ref,
        Port(ref, words),
        names={"model.layers.*.self_attn.everything": "model.layers.*.self_attn.{q_proj,k_proj,v_proj}"},
    )
    assert_aligned(with_names)
    assert not any("matched by structure" in note for note in with_names.outcome.notes)


def test_a_fused_port_on_two_ranks(tmp_path: Path, rank_pool: Callable[[int], RankPool]) -> None:
    port = ports.Port(family="qwen2", ranks=2, shard=engine_part, changes={"num_hidden_layers": 1})
    healthy = ports.judged(port, tmp_path, rank_pool)
    ports.assert_aligned(healthy, unchecked=("model.layers.0.self_attn",))
    assert any(
        j.module.endswith("down_proj") and j.check.value == "partial" for j in healthy.outcome.judgements
    )
    faulty = ports.judged(port, tmp_path, rank_pool, spoil=swap_keys_and_values)
    assert [(f.module, f.rank) for f in faulty.findings if f.check.value == "parameter"] == [
        ("model.layers.0.self_attn.k_proj", 1),
        ("model.layers.0.self_attn.v_proj", 1),
    ]
