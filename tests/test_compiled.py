"""Candidates that inductor compiled: healthy ones are aligned, and a fault in a block is found at the block.

Each test compiles C++, about 20 s on a free core where nothing is cached.
"""

import pytest
import torch
from torch import nn

import validator
from validator.checks.findings import Verdict


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64, eps=1e-6)
        self.gate = nn.Linear(64, 128, bias=False)
        self.up = nn.Linear(64, 128, bias=False)
        self.down = nn.Linear(128, 64, bias=False)
        self.scale = 1.0

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)) * self.scale


class Chaos(nn.Module):
    """Makes what is off a thousand times as large: noise fills all that leaves two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return torch.sin(self.up(x) * 2000)


class Net(nn.Module):
    def __init__(self, block=Block) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.layers = nn.ModuleList([block(), block()])
        self.head = nn.Linear(64, 50, bias=False)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _blocks(model):
    for layer in model.layers:
        layer.compile()
    return model


def _wrapped_blocks(model):
    for i, layer in enumerate(model.layers):
        model.layers[i] = torch.compile(layer)
    return model


def _whole_alone(model):
    return torch.compile(model, backend="eager")  # no code is generated: seconds less


INDUCTOR = {"whole": torch.compile, "blocks": _blocks, "wrapped blocks": _wrapped_blocks}
WAYS = {**INDUCTOR, "whole without inductor": _whole_alone}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def judged(way, dtype, spoil=lambda model: None, blocks=Block):
    torch.manual_seed(0)
    ref = Net(blocks).eval()
    torch.manual_seed(0)
    cand = Net(blocks).eval().to(dtype)
    spoil(cand)
    inputs = {"input_ids": torch.arange(128).remainder(50).view(2, 64)}
    return validator.check(reference=ref, candidate=WAYS[way](cand), inputs=inputs)


def scaled(factor):
    def spoil(model):
        model.layers[1].scale = factor

    return spoil


def is_healthy(result):
    return (
        result.verdict is Verdict.ALIGNED
        and result.outcome.run["candidate"]["proof"]["status"] == "identical"
    )


def test_healthy_compiled_blocks_are_aligned_and_the_note_says_what_was_hidden():
    result = judged("blocks", torch.bfloat16)
    assert is_healthy(result), str(result)
    (note,) = [note for note in result.outcome.notes if note.startswith("compiled: ")]
    assert "8 modules inside layers.0, layers.1 were not looked into" in note


def test_a_fault_inside_of_a_compiled_block_is_found_at_the_block():
    result = judged("wrapped blocks", torch.bfloat16, scaled(1.02))
    assert result.verdict is Verdict.DIVERGENT, str(result)
    assert [finding.module for finding in result.findings] == ["layers.1"]


def test_a_healthy_model_that_is_compiled_whole_is_aligned():
    result = judged("whole", torch.bfloat16)
    assert is_healthy(result), str(result)
    assert not any(
        "fired in" in note for note in result.outcome.notes
    )  # what is hidden has not been left out
    (note,) = [note for note in result.outcome.notes if note.startswith("compiled: ")]
    assert "13 modules inside the model itself were not looked into" in note


@pytest.mark.slow
def test_a_fault_in_a_model_that_is_compiled_whole_is_found_in_the_model():
    result = judged("whole without inductor", torch.bfloat16, scaled(1.1))
    assert result.verdict is Verdict.DIVERGENT, str(result)
    assert result.first_divergence.module == ""


@pytest.mark.slow
@pytest.mark.parametrize("way", INDUCTOR)
def test_healthy_compiled_models_in_float32_are_aligned(way):
    result = judged(way, torch.float32)
    assert is_healthy(result), str(result)


def test_a_region_that_is_too_deep_is_inconclusive_and_says_so():
    result = judged("whole without inductor", torch.bfloat16, blocks=Chaos)
    assert result.verdict is Verdict.INCONCLUSIVE, str(result)
    (why,) = result.outcome.why_inconclusive
    assert why.startswith("the model itself: its compiled region is too deep to be judged as one function")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["blocks", "wrapped blocks"])
def test_a_fault_inside_of_a_compiled_block_in_float32_is_found_at_the_block(way):
    result = judged(way, torch.float32, scaled(1.02))
    assert [finding.module for finding in result.findings] == ["layers.1"], str(result)
