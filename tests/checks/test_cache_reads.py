"""What attention reads from a quantised cache is part of what is computed, whatever kernel it has."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks.cache_reads import from_cache
from validator.checks.findings import Outcome, Verdict
from validator.numerics.recipes import EAGER, Recipe

BATCH, TOKENS, HEADS, CHANNELS = 2, 24, 4, 16
WIDTH = HEADS * CHANNELS

FP8 = Recipe(name="mine", inner="storage", cache="float8_e4m3fn", cache_scale=1.0)
INT8_BY_HEAD = Recipe(name="mine", inner="storage", cache="int8")


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fp8(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def int8_by_head(x: Tensor) -> Tensor:
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-20) / 127
    return ((x.float() / scale).round().to(torch.int8) * scale).to(x.dtype)


class Attention(nn.Module):
    """Causal attention by one of several kernels, which reads its keys and values through `coded`."""

    def __init__(self, kernel: str, coded: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.kernel, self.coded = kernel, coded
        for i, name in enumerate("qkvo"):
            layer = nn.Linear(WIDTH, WIDTH, bias=False)
            layer.weight.data = seeded(WIDTH, WIDTH, seed=i + 1) * 1.5 / WIDTH**0.5
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        batch, tokens, _ = x.shape
        q, k, v = (getattr(self, n)(x).view(batch, tokens, -1, CHANNELS).transpose(1, 2) for n in "qkv")
        k, v = self.coded(k), self.coded(v)
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        added = torch.zeros(tokens, tokens, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        if self.kernel == "products":
            p = torch.softmax(q @ k.mT * CHANNELS**-0.5 + added, -1, dtype=torch.float32).to(x.dtype)
            mixed = p @ v
        elif self.kernel == "causal":
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = seen if self.kernel == "mask" else added
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))


KERNELS = ("products", "causal", "mask", "added mask")


def outcome(kernel: str, coded: Callable[[Tensor], Tensor], recipe: Recipe) -> Outcome:
    candidate = Attention(kernel, coded).bfloat16()
    return check(Attention(kernel), candidate, {"x": seeded(BATCH, TOKENS, WIDTH).bfloat16()}, recipe=recipe)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("coded", "recipe"), [(fp8, FP8), (int8_by_head, INT8_BY_HEAD)])
def test_a_declared_cache_is_aligned_and_another_is_told_by_name(
    kernel: str, coded: Callable[[Tensor], Tensor], recipe: Recipe
) -> None:
    assert outcome(kernel, coded, recipe).verdict is Verdict.ALIGNED
    (finding,) = outcome(kernel, coded, EAGER).findings
    assert (finding.into, finding.verdict) == ("o", Verdict.UNDECLARED_PRECISION)
    assert finding.recipe == ("fp8-cache" if recipe is FP8 else "int8-cache-by-head")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_scale_of_a_declared_cache_diverges(kernel: str) -> None:
    (finding,) = outcome(kernel, lambda x: fp8(x) * 1.03125, FP8).findings
    assert (finding.into, finding.verdict) == ("o", Verdict.DIVERGENT)


def test_a_single_step_need_not_read_from_the_cache() -> None:
    assert outcome("causal", lambda x: x, FP8).verdict is Verdict.ALIGNED


def test_what_comes_out_of_a_cache_is_what_a_device_reads() -> None:
    x = seeded(2, 3, 5, CHANNELS).to(torch.bfloat16)
    x[0, 0, 0] = 0
    for coded, recipe in ((fp8, FP8), (int8_by_head, INT8_BY_HEAD)):
        assert torch.equal(from_cache(x.double(), recipe, dim=-1).to(x.dtype), coded(x))
        turned = from_cache(x.double().mT.contiguous(), recipe, dim=-2)
        assert torch.equal(turned.mT.to(x.dtype), coded(x))
    assert from_cache(torch.tensor([1000.0, -1000.0]), FP8, dim=-1).tolist() == [448.0, -448.0]
