"""The noise of a position is that of what a candidate may round, as it is declared."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from validator.emulate import Emulation, emulate
from validator.errors import TargetError
from validator.long_context.noise import measured_band
from validator.long_context.position_errors import LIMIT, position_errors
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe

TOKENS = torch.arange(48) % 32
VOCABULARY = 32


class Net(nn.Module):
    """A causal model of plain torch; the scores of its tokens may go through a function of theirs."""

    def __init__(self, function: Any = torch.relu) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.up, self.head = nn.Linear(64, 128), nn.Linear(128, VOCABULARY)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
        self.function = function

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.function(self.up(self.embed(input_ids).cumsum(1) / 4)))


def largest(recipe: Recipe | None, emulation: Emulation, *, gain: float = 1.0) -> float:
    """Return the largest error of a float32 candidate over the noise of a recipe."""
    reference = Net()
    candidate = copy.deepcopy(reference)
    candidate.up.weight.data *= gain
    with torch.no_grad(), emulate(emulation):
        logits = candidate(TOKENS[None])[0]
    band = measured_band(lambda: copy.deepcopy(reference), TOKENS, dtype=torch.float32, recipe=recipe)
    return float(position_errors(cand=logits, band=band).ratio.max())


TF32 = Emulation(factors="tf32")
PARTIALS = Emulation(split_k=8, partials="bfloat16")


@pytest.mark.parametrize(
    ("name", "emulation"), [("tf32", TF32), ("bf16-partials", PARTIALS)], ids=["tf32", "bf16-partials"]
)
def test_a_candidate_is_within_the_noise_of_what_it_declares_and_of_nothing_stricter(
    name: str, emulation: Emulation
) -> None:
    assert largest(RECIPES[name], emulation) < LIMIT
    for stricter in (None, FUSED, EAGER):
        assert largest(stricter, emulation) > 10 * LIMIT


class Reads(nn.Module):
    """A causal model that attends, to keys and values of which `coded` makes others."""

    def __init__(self, coded: Any = lambda x: x) -> None:
        super().__init__()
        self.net, self.coded = Net(), coded

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.net.up(self.net.embed(input_ids)).unflatten(-1, (4, 32)).transpose(1, 2)
        keys = self.coded(x)
        mixed = nn.functional.scaled_dot_product_attention(x, keys, keys, is_causal=True)
        return self.net.head(mixed.transpose(1, 2).flatten(-2))


def test_a_declared_cache_is_in_the_noise() -> None:
    def coded(x: Tensor) -> Tensor:
        return x.to(torch.float8_e4m3fn).to(x.dtype)

    def largest(recipe: Recipe | None) -> float:
        with torch.no_grad():
            logits = Reads(coded).bfloat16()(TOKENS[None])[0]
        band = measured_band(Reads, TOKENS, dtype=torch.bfloat16, recipe=recipe)
        return float(position_errors(cand=logits.double(), band=band).ratio.max())

    assert largest(RECIPES["fp8-cache"]) < LIMIT
    assert largest(None) > LIMIT


def test_what_a_declared_recipe_does_not_allow_is_outside() -> None:
    assert largest(RECIPES["tf32"], TF32, gain=1.05) > LIMIT
    assert largest(RECIPES["tf32"], PARTIALS) > LIMIT


def test_code_that_can_not_be_simulated_ends_in_a_message_where_a_recipe_asks_for_it() -> None:
    def build() -> nn.Module:
        return Net(torch.special.bessel_j0)

    assert measured_band(build, TOKENS, dtype=torch.float32).sigma.isfinite().all()
    with pytest.raises(TargetError, match="the recipe 'tf32' can't be simulated on the reference's code"):
        measured_band(build, TOKENS, dtype=torch.float32, recipe=RECIPES["tf32"])
