"""Quantised caches: declared they are part of what is computed, undeclared they are told by name.

Shape legend: B = batch, K = key heads, T = keys, D = channels of a head.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decoding.runs import generated, judge, pair
from tests.decoding.test_sharded import PORT
from tests.selecting import cases
from validator.checks.findings import Check, Verdict
from validator.errors import UsageError
from validator.faults.kernels import wrap_kernel
from validator.numerics.cache_scales import CacheScale
from validator.numerics.recipes import RECIPES, Recipe
from validator.target_check import check_target

Coding = Callable[[Tensor], Tensor]
"""From keys or values `[B, K, T, D]` to what comes out of the cache in their place."""

FP8 = Recipe(name="mine", inner="storage", cache="float8_e4m3fn", cache_scale=1.0)
FP8_BY_HEAD = Recipe(name="mine", inner="storage", cache="float8_e4m3fn")
INT8_BY_HEAD = Recipe(name="mine", inner="storage", cache="int8")

WRONG = 1.25
PROMPT = 8
READS = ("earlier steps", "all in later steps", "everything")


def fp8(x: Tensor, *, read_by: float = 1.0) -> Tensor:
    return (x.to(torch.float8_e4m3fn).float() * read_by).to(x.dtype)


def fp8_as_fnuz(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).view(torch.float8_e4m3fnuz).to(x.dtype)


def fp8_by_head(x: Tensor, *, read_by: float = 1.0) -> Tensor:
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-20) / 448
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale * read_by).to(x.dtype)


def int8_by_head(x: Tensor, *, read_by: float = 1.0) -> Tensor:
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-20) / 127
    return ((x.float() / scale).round().to(torch.int8) * scale * read_by).to(x.dtype)


WAYS: dict[str, tuple[Callable[..., Tensor], Recipe]] = {
    "fp8-cache": (fp8, FP8),
    "fp8-cache-by-token-head": (fp8_by_head, FP8_BY_HEAD),
    "int8-cache-by-token-head": (int8_by_head, INT8_BY_HEAD),
}


def fp8_by(x: Tensor, *, written: float, read: float) -> Tensor:
    return ((x.float() / written).to(torch.float8_e4m3fn).float() * read).to(x.dtype)


def cached(model: Any, keys: Coding, values: Coding, *, reads: str = "earlier steps") -> None:
    """Let all layers read keys and values from a quantised cache: see `READS`."""
    for layer in model.model.layers:
        attend_from_cache(layer, keys, values, reads=reads)


def attend_from_cache(layer: Any, keys: Coding, values: Coding, *, reads: str = "earlier steps") -> None:
    """Let one layer do so."""

    def read(coded: Coding, x: Tensor, queries: int) -> Tensor:
        earlier = x.shape[2] - queries
        if reads == "everything" or (reads == "all in later steps" and earlier):
            return coded(x)
        return torch.cat((coded(x[:, :, :earlier]), x[:, :, earlier:]), 2)

    def kernel(
        inner: Any, attention: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        queries = query.shape[2]
        return inner(
            attention, query, read(keys, key, queries), read(values, value, queries), *args, **kwargs
        )

    wrap_kernel(layer.self_attn, kernel)


DECLARED = [(name, kernel, reads) for name in WAYS for kernel in ("sdpa", "eager") for reads in READS]
QUICK = [("fp8-cache", "sdpa", "earlier steps"), ("int8-cache-by-token-head", "eager", "all in later steps")]


@pytest.mark.parametrize("case", cases(DECLARED, quick=QUICK.__contains__, label=", ".join))
def test_a_cache_that_is_declared_is_aligned_and_one_that_is_not_is_undeclared_precision(
    case: tuple[str, str, str],
) -> None:
    name, kernel, reads = case
    coded, recipe = WAYS[name]
    reference, candidate = pair("llama", kernel=kernel)
    cached(candidate, coded, coded, reads=reads)
    declared = judge(reference, candidate, generated(), recipe=recipe)
    assert declared.verdict is Verdict.ALIGNED, str(declared)
    undeclared = judge(reference, candidate, generated())
    assert undeclared.verdict is Verdict.UNDECLARED_PRECISION, str(undeclared)
    assert {finding.recipe for finding in undeclared.findings} == {name}


class Written:
    """Quantises keys or values as they are written, by the largest of a step: of the first one, or each."""

    def __init__(self, recipe: Recipe, *, keeps_scale: bool) -> None:
        self.fmt, self.keeps_scale = recipe.cache, keeps_scale
        self.dims = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "token": (1, 3)}[str(recipe.cache_scale)]
        self.largest = 127.0 if self.fmt == "int8" else torch.finfo(getattr(torch, self.fmt)).max
        self.held: Tensor | None = None
        self.scale = torch.ones(())

    def __call__(self, x: Tensor) -> Tensor:
        if self.held is None or x.shape[2] <= self.held.shape[2]:  # another run begins
            self.held = x[:, :, :0]
        new = x[:, :, self.held.shape[2] :].float()
        if not new.numel():
            return self.held
        if not (self.keeps_scale and self.held.numel()):
            self.scale = new.abs().amax(self.dims, keepdim=True) / self.largest
        quotients = (new / self.scale).clamp(-self.largest, self.largest)
        codes = quotients.round() if self.fmt == "int8" else quotients.to(getattr(torch, self.fmt)).float()
        self.held = torch.cat((self.held, (codes * self.scale).to(x.dtype)), 2)
        return self.held


WRITTEN = [
    (name, kernel, keeps_scale, reads)
    for name in ("fp8-cache-by-tensor", "fp8-cache-by-head", "int8-cache-by-head")
    for kernel in ("sdpa", "eager")
    for keeps_scale in (True, False)
    for reads in ("earlier steps", "everything")
]
QUICK_WRITTEN = [
    ("fp8-cache-by-tensor", "sdpa", True, "earlier steps"),
    ("int8-cache-by-head", "eager", False, "everything"),
]


@pytest.mark.parametrize(
    "case",
    cases(WRITTEN, quick=QUICK_WRITTEN.__contains__, label=lambda case: ", ".join(map(str, case))),
)
def test_scales_taken_from_what_a_step_writes_are_aligned_as_they_are_declared_and_else_told_by_name(
    case: tuple[str, str, bool, str],
) -> None:
    name, kernel, keeps_scale, reads = case
    recipe = RECIPES[name]
    reference, candidate = pair("llama", kernel=kernel)
    for layer in candidate.model.layers:
        keys, values = (Written(recipe, keeps_scale=keeps_scale) for _ in range(2))
        attend_from_cache(layer, keys, values, reads=reads)
    declared = judge(reference, candidate, generated(), recipe=recipe)
    assert declared.verdict is Verdict.ALIGNED, str(declared)
    undeclared = judge(reference, candidate, generated())
    assert undeclared.verdict is Verdict.UNDECLARED_PRECISION, str(undeclared)
    assert {finding.recipe for finding in undeclared.findings} == {name}


ON_RANKS = """
from tests.decoding.test_quantised_caches import Written, attend_from_cache
from validator.numerics.recipes import RECIPES

unsplit = candidate


def candidate():
    model = unsplit()
    for layer in model.model.layers:
        keys, values = (Written(RECIPES[{name!r}], keeps_scale=False) for _ in range(2))
        attend_from_cache(layer, keys, values, reads="everything")
    return model
"""


@pytest.mark.parametrize(
    "name", ["fp8-cache-by-tensor", pytest.param("fp8-cache-by-token", marks=pytest.mark.slow)]
)
def test_scales_that_each_of_two_ranks_takes_from_its_own_heads_are_those_that_are_declared(
    name: str, tmp_path: Path
) -> None:
    reference, _ = pair("llama", kernel="sdpa")
    reference.save_pretrained(tmp_path / "checkpoint")
    port = tmp_path / "port.py"
    text = PORT.format(checkpoint=str(tmp_path / "checkpoint")) + ON_RANKS.format(name=name)
    port.write_text(text, encoding="utf-8")
    declared = check_target(str(port), nproc=2, timeout_s=500, recipe=name)
    assert declared.verdict is Verdict.ALIGNED, str(declared)
    undeclared = check_target(str(port), nproc=2, timeout_s=500)
    assert undeclared.verdict is Verdict.UNDECLARED_PRECISION, str(undeclared)
    assert {finding.recipe for finding in undeclared.findings} == {name}


SCALED = [(name, of) for name in WAYS for of in ("keys", "values")]


@pytest.mark.parametrize("case", cases(SCALED, quick=("fp8-cache", "keys").__eq__, label=" of ".join))
def test_a_wrong_scale_of_a_declared_cache_is_named_in_the_steps_that_read_by_it(
    case: tuple[str, str],
) -> None:
    name, of = case
    coded, recipe = WAYS[name]
    reference, candidate = pair("llama", kernel="sdpa")

    def wrong(x: Tensor) -> Tensor:
        return coded(x, read_by=WRONG)

    cached(candidate, wrong if of == "keys" else coded, wrong if of == "values" else coded)
    result = judge(reference, candidate, generated(prompt=PROMPT), recipe=recipe)
    assert result.verdict is Verdict.DIVERGENT
    found = result.findings[0]
    assert found.check is Check.WIRING
    assert (found.module, found.into) == ("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj")
    assert found.step is not None
    assert found.step.number > 1
    assert min(found.where["tokens"]) >= PROMPT


ENGINE = {0: (0.0123, 0.0187), 1: (0.0151, 0.0109)}
"""By layer: the scales of keys and of values that an engine keeps."""


@pytest.mark.parametrize(
    "read_by",
    [
        pytest.param(ENGINE, id="right"),
        pytest.param({0: ENGINE[1], 1: ENGINE[0]}, id="of the other layer"),
        pytest.param({i: (v, k) for i, (k, v) in ENGINE.items()}, id="keys and values swapped"),
    ],
)
def test_scales_of_layers_are_aligned_as_they_are_declared_and_named_where_others_are_read_by(
    read_by: dict[int, tuple[float, float]],
) -> None:
    scales = [
        CacheScale(module=f"model.layers.{i}.self_attn", keys=k, values=v) for i, (k, v) in ENGINE.items()
    ]
    reference, candidate = pair("llama", kernel="sdpa")
    for layer, own, read in zip(candidate.model.layers, ENGINE.values(), read_by.values(), strict=True):
        keys, values = (partial(fp8_by, written=w, read=r) for w, r in zip(own, read, strict=True))
        attend_from_cache(layer, keys, values)
    result = judge(reference, candidate, generated(), recipe=replace(FP8, cache_scale=tuple(scales)))
    if read_by is ENGINE:
        assert result.verdict is Verdict.ALIGNED, str(result)
        return
    found = result.findings[0]
    assert (found.module, found.into) == ("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj")
    assert found.step is not None
    assert found.step.number > 1
    assert min(found.where["tokens"]) >= PROMPT
    assert found.signature is not None
    assert found.signature.kind == "cache_scale"
    factor = read_by[0][1] / ENGINE[0][1]
    assert found.signature.parameters["factor_of_values"] == pytest.approx(factor, rel=0.05)


def test_codes_that_are_read_in_another_format_are_found_where_the_cache_is_declared() -> None:
    reference, candidate = pair("llama", kernel="sdpa")
    cached(candidate, fp8_as_fnuz, fp8)
    found = judge(reference, candidate, generated(), recipe=FP8).findings[0]
    assert (found.module, found.into) == ("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj")
    assert found.verdict is Verdict.DIVERGENT
    # The exponents of the two formats are 1 apart.
    assert found.signature is not None
    assert found.signature.kind == "cache_scale"
    assert found.signature.parameters["factor_of_keys"] == pytest.approx(0.5, rel=0.1)


def test_a_cache_that_is_declared_and_is_not_quantised_is_not_what_was_declared() -> None:
    result = judge(*pair("llama", kernel="sdpa"), generated(), recipe=INT8_BY_HEAD)
    assert result.verdict is Verdict.UNDECLARED_PRECISION
    assert {finding.recipe for finding in result.findings} == {"eager"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "int3"}, r"cache='int3'\): legal are float8_e4m3fn, .*, int8, storage"),
        ({"cache_scale": 0.5}, r"cache_scale='0.5'\): nothing is read by it: give cache="),
        ({"cache": "int8", "cache_scale": 0.0}, r"cache_scale='0.0'\): it must be a positive number"),
    ],
)
def test_a_cache_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe(name="mine", **options)


def test_a_cache_of_keys_made_of_latents_can_be_declared_and_a_note_says_that_the_latents_can_not() -> None:
    reference, candidate = pair("deepseek-v3", kernel="sdpa")
    cached(candidate, fp8, fp8, reads="everything")
    result = judge(reference, candidate, generated(), recipe=FP8)
    assert result.verdict is Verdict.ALIGNED, str(result)
    assert any("A cache of latents can't be declared" in note for note in result.outcome.notes)
