"""What attention reads from a quantised cache is part of what is computed, whatever kernel it has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check
from validator.checks import cache_reads
from validator.checks.cache_codes import Sharing, from_cache
from validator.checks.findings import Outcome, Verdict
from validator.errors import UsageError
from validator.numerics.cache_scales import CacheScale
from validator.numerics.recipes import EAGER, RECIPES, Recipe

BATCH, TOKENS, HEADS, CHANNELS = 2, 24, 4, 16
WIDTH = HEADS * CHANNELS

FP8 = Recipe(name="mine", inner="storage", cache="float8_e4m3fn", cache_scale=1.0)
INT8_BY_HEAD = Recipe(name="mine", inner="storage", cache="int8")
SCALES = CacheScale(keys=0.0123, values=0.0187)
SCALED = replace(FP8, cache_scale=(SCALES,))

Coding = Callable[[Tensor], Tensor]


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fp8(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def fp8_by(scale: float) -> Coding:
    return lambda x: (fp8(x.float() / scale) * scale).to(x.dtype)


LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
DIMS = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "token": (1, 3)}


def by_largest(fmt: str, shared_by: str, *, read_by: float = 1.0) -> Coding:
    """Return what comes of codes whose scale is taken from the largest value of a tensor, head or token."""

    def coded(x: Tensor) -> Tensor:
        wide = x.float()
        scale = wide.abs().amax(DIMS[shared_by], keepdim=True) / LARGEST[fmt]
        codes = (wide / scale).round() if fmt == "int8" else (wide / scale).to(getattr(torch, fmt)).float()
        return (codes * scale * read_by).to(x.dtype)

    return coded


def int8_by_head(x: Tensor) -> Tensor:
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-20) / 127
    return ((x.float() / scale).round().to(torch.int8) * scale).to(x.dtype)


class Attention(nn.Module):
    """Causal attention by one of several kernels, which reads its keys, and its values, through `coded`."""

    def __init__(self, kernel: str, coded: tuple[Coding, Coding] = (lambda x: x, lambda x: x)) -> None:
        super().__init__()
        self.kernel, self.coded = kernel, coded
        for i, name in enumerate("qkvo"):
            layer = nn.Linear(WIDTH, WIDTH, bias=False)
            layer.weight.data = seeded(WIDTH, WIDTH, seed=i + 1) * 1.5 / WIDTH**0.5
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        batch, tokens, _ = x.shape
        q, k, v = (getattr(self, n)(x).view(batch, tokens, -1, CHANNELS).transpose(1, 2) for n in "qkv")
        k, v = self.coded[0](k), self.coded[1](v)
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


def outcome(kernel: str, coded: Coding | tuple[Coding, Coding], recipe: Recipe) -> Outcome:
    candidate = Attention(kernel, coded if isinstance(coded, tuple) else (coded, coded)).bfloat16()
    return check(Attention(kernel), candidate, {"x": seeded(BATCH, TOKENS, WIDTH).bfloat16()}, recipe=recipe)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("coded", "recipe"), [(fp8, FP8), (int8_by_head, INT8_BY_HEAD)])
def test_a_declared_cache_is_aligned_and_another_is_told_by_name(
    kernel: str, coded: Coding, recipe: Recipe
) -> None:
    assert outcome(kernel, coded, recipe).verdict is Verdict.ALIGNED
    (finding,) = outcome(kernel, coded, EAGER).findings
    assert (finding.into, finding.verdict) == ("o", Verdict.UNDECLARED_PRECISION)
    assert finding.recipe == ("fp8-cache" if recipe is FP8 else "int8-cache-by-token-head")


SHARED = [
    ("causal", "fp8-cache-by-tensor"),
    ("products", "fp8-cache-by-head"),
    ("products", "fp8-cache-by-token"),
    ("causal", "fp8-e5m2-cache-by-head"),
    ("causal", "int8-cache-by-token"),
]


@pytest.mark.parametrize(("kernel", "name"), SHARED, ids=[name for _, name in SHARED])
def test_scales_that_keys_share_are_told_by_name_and_a_wrong_one_diverges(kernel: str, name: str) -> None:
    recipe = RECIPES[name]
    assert isinstance(recipe.cache_scale, str)
    right, wrong = (by_largest(recipe.cache, recipe.cache_scale, read_by=factor) for factor in (1.0, 1.05))
    assert outcome(kernel, right, recipe).verdict is Verdict.ALIGNED
    (finding,) = outcome(kernel, right, EAGER).findings
    assert (finding.into, finding.verdict, finding.recipe) == ("o", Verdict.UNDECLARED_PRECISION, name)
    assert f'which was not declared (declare it by recipe = "{name}")' in finding.summary
    for declared in (recipe, EAGER):
        (finding,) = outcome(kernel, wrong, declared).findings
        assert (finding.into, finding.verdict) == ("o", Verdict.DIVERGENT)


def of_own_scales(
    shared_by: str, *, ranks: int = 1, by_sequence: bool = False, kept_in: torch.dtype = torch.float32
) -> Coding:
    """Return fp8 codes with scales that each rank takes from its own heads, or that are one sequence's."""

    def coded(x: Tensor) -> Tensor:
        groups = x.float().unflatten(1, (ranks, -1))
        over = {"tensor": (0, 2, 3, 4), "head": (0, 3, 4), "token": (2, 4), "token-head": (4,)}[shared_by]
        sizes = groups.abs().amax([d for d in over if d or not by_sequence], keepdim=True)
        scale = (sizes.to(kept_in) / 448).to(kept_in).float()
        return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(1, 2).to(x.dtype)

    return coded


def on_ranks(ranks: int, coded: Coding, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Judge attention whose heads are split between ranks, which one process computes here."""
    monkeypatch.setattr(cache_reads, "_ranks", lambda code: ranks)
    return outcome("products", coded, recipe)


@pytest.mark.parametrize("shared_by", ["tensor", "token"])
def test_a_scale_that_each_rank_takes_from_its_own_heads_is_that_of_the_declared_cache(
    shared_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"fp8-cache-by-{shared_by}"
    coded = of_own_scales(shared_by, ranks=2)
    assert on_ranks(2, coded, RECIPES[name], monkeypatch).verdict is Verdict.ALIGNED
    (finding,) = on_ranks(2, coded, EAGER, monkeypatch).findings
    assert (finding.verdict, finding.recipe) == (Verdict.UNDECLARED_PRECISION, name)
    whole = of_own_scales(shared_by)
    assert on_ranks(2, whole, RECIPES[name], monkeypatch).verdict is Verdict.ALIGNED
    (finding,) = on_ranks(2, lambda x: coded(x) * 1.05, RECIPES[name], monkeypatch).findings
    assert finding.verdict is Verdict.DIVERGENT


KEPT = ("tensor", "head", "token", "token-head")


@pytest.mark.parametrize("shared_by", KEPT)
def test_a_scale_kept_in_the_format_of_the_keys_is_that_of_the_declared_cache(shared_by: str) -> None:
    recipe = RECIPES[f"fp8-cache-by-{shared_by}"]
    coded = of_own_scales(shared_by, kept_in=torch.bfloat16)
    assert outcome("causal", coded, recipe).verdict is Verdict.ALIGNED
    (finding,) = outcome("causal", lambda x: coded(x) * 1.05, recipe).findings
    assert finding.verdict is Verdict.DIVERGENT


@pytest.mark.parametrize("shared_by", ["tensor", "head"])
def test_a_scale_that_each_sequence_has_is_that_of_the_declared_cache(shared_by: str) -> None:
    recipe = RECIPES[f"fp8-cache-by-{shared_by}"]
    coded = of_own_scales(shared_by, by_sequence=True)
    assert outcome("causal", coded, recipe).verdict is Verdict.ALIGNED
    (finding,) = outcome("causal", lambda x: coded(x) * 1.05, recipe).findings
    assert finding.verdict is Verdict.DIVERGENT


def test_ranks_split_heads_that_are_no_multiple_of_them_not_at_all() -> None:
    with pytest.raises(ValueError, match="3 heads can't be split between 2 ranks"):
        from_cache(seeded(2, 3, 5, 8), "int8", "tensor", dim=-1, sharing=Sharing(ranks=2))


class Halves(Attention):
    """Attends twice, to half of the heads each time, so that no single attention can be made out."""

    def __init__(self, coded: Coding = lambda x: x, gain: float = 1.0) -> None:
        super().__init__("causal", (coded, coded))
        self.gain = gain

    def forward(self, x: Tensor) -> Any:
        batch, tokens, _ = x.shape
        given = (x * self.gain, x, x)
        made = [
            getattr(self, n)(y).view(batch, tokens, -1, CHANNELS).transpose(1, 2)
            for n, y in zip("qkv", given, strict=True)
        ]
        q, k, v = made[0], self.coded[0](made[1]), self.coded[1](made[2])
        mixed = [
            functional.scaled_dot_product_attention(*(y[:, half] for y in (q, k, v)), is_causal=True)
            for half in (slice(0, 2), slice(2, 4))
        ]
        return self.o(torch.cat(mixed, 1).transpose(1, 2).reshape(batch, tokens, -1))


def of_halves(candidate: Halves) -> Outcome:
    x = seeded(BATCH, TOKENS, WIDTH).bfloat16()
    return check(Halves(), candidate.bfloat16(), {"x": x}, recipe=FP8)


def test_attention_that_is_not_made_out_is_left_open_where_its_cache_is_declared() -> None:
    found = of_halves(Halves(fp8))
    assert (found.verdict, found.findings) == (Verdict.INCONCLUSIVE, ())
    (gap,) = {gap for gap in found.unchecked if "cache of codes is declared" in gap.why}
    assert gap.module == ""
    assert of_halves(Halves()).verdict is Verdict.ALIGNED


def test_what_is_before_such_attention_is_judged() -> None:
    (finding,) = of_halves(Halves(fp8, gain=1.05)).findings
    assert (finding.into, finding.verdict) == ("q", Verdict.DIVERGENT)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_scale_of_a_declared_cache_diverges(kernel: str) -> None:
    (finding,) = outcome(kernel, lambda x: fp8(x) * 1.03125, FP8).findings
    assert (finding.into, finding.verdict) == ("o", Verdict.DIVERGENT)


def test_a_single_step_need_not_read_from_the_cache() -> None:
    assert outcome("causal", lambda x: x, FP8).verdict is Verdict.ALIGNED


@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_to_keys_that_are_no_tokens_of_the_steps_reads_them_all_from_the_cache(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = torch.ones(TOKENS, TOKENS + 1, dtype=torch.bool)
    monkeypatch.setattr(cache_reads, "earlier_keys", lambda call, trace: steps.tril(-1))
    assert outcome(kernel, fp8, FP8).verdict is Verdict.ALIGNED
    assert outcome(kernel, lambda x: fp8(x) * 1.03125, FP8).verdict is Verdict.DIVERGENT


def test_what_comes_out_of_a_cache_is_what_a_device_reads() -> None:
    x = seeded(2, 3, 5, CHANNELS).to(torch.bfloat16)
    x[0, 0, 0] = 0
    for coded, fmt, scale in (
        (fp8, "float8_e4m3fn", 1.0),
        (fp8_by(SCALES.keys), "float8_e4m3fn", SCALES.keys),
        (int8_by_head, "int8", None),
    ):
        assert torch.equal(from_cache(x.double(), fmt, scale, dim=-1).to(x.dtype), coded(x))
        turned = from_cache(x.double().mT.contiguous(), fmt, scale, dim=-2)
        assert torch.equal(turned.mT.to(x.dtype), coded(x))
    far = torch.tensor([1000.0, -1000.0])
    assert from_cache(far, "float8_e4m3fn", 1.0, dim=-1).tolist() == [448.0, -448.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_and_values_may_have_scales_of_their_own(kernel: str) -> None:
    right, turned = (fp8_by(SCALES.keys), fp8_by(SCALES.values)), (fp8_by(SCALES.values), fp8_by(SCALES.keys))
    assert outcome(kernel, right, SCALED).verdict is Verdict.ALIGNED
    (finding,) = outcome(kernel, turned, SCALED).findings
    assert finding.into == "o"


class Two(nn.Module):
    """Two attentions, one after the other."""

    def __init__(self, first: Coding = lambda x: x, second: Coding = lambda x: x) -> None:
        super().__init__()
        self.first, self.second = (Attention("causal", (coded, coded)) for coded in (first, second))

    def forward(self, x: Tensor) -> Any:
        return self.second(self.first(x))


def of_two(first: Coding, second: Coding, recipe: Recipe) -> Outcome:
    x = seeded(BATCH, TOKENS, WIDTH).bfloat16()
    return check(Two(), Two(first, second).bfloat16(), {"x": x}, recipe=recipe)


def test_a_module_that_no_scale_is_declared_for_reads_no_codes() -> None:
    of_first = replace(FP8, cache_scale=(CacheScale(module="first", keys=1.0, values=1.0),))
    assert of_two(fp8, lambda x: x, of_first).verdict is Verdict.ALIGNED
    (finding,) = of_two(fp8, fp8, of_first).findings
    assert (finding.module, finding.into, finding.recipe) == ("second", "second.o", "fp8-cache")


@pytest.mark.parametrize("glob", ["*.o", "first.[kv]"])
def test_a_scale_of_modules_that_do_not_attend_is_refused(glob: str) -> None:
    elsewhere = replace(FP8, cache_scale=(CacheScale(module=glob, keys=1.0, values=1.0),))
    with pytest.raises(
        UsageError, match=r"of the recipe 'mine' matches no module that attends \('.*' does not"
    ):
        of_two(fp8, fp8, elsewhere)


def test_a_scale_of_modules_that_the_reference_has_not_got_is_refused() -> None:
    elsewhere = replace(SCALED, cache_scale=(SCALES, replace(SCALES, module="layers.*.attn")))
    with pytest.raises(
        UsageError, match=r"CacheScale\(module='layers.\*.attn'\) of the recipe 'mine' matches no"
    ):
        outcome("causal", fp8, elsewhere)
