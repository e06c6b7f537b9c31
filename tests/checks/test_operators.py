"""What is known of aten operators: what rounds nothing, and the sigma of float32 inside the others.

Healthy data: the error of a real float32 kernel against float64, in units of sigma.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from validator.checks.arithmetic import Arithmetic
from validator.checks.attention import attention
from validator.checks.how import How
from validator.checks.operator_noise import operator_noise
from validator.checks.operators import KERNELS, is_exact, operator_name
from validator.checks.roundings import Rounding
from validator.checks.shadow import ShadowTensor
from validator.numerics.bands import normal_lambda, tail_lambda
from validator.numerics.formats import FORMATS
from validator.numerics.recipes import EAGER, FUSED
from validator.numerics.ulp import ulp

aten = torch.ops.aten
F32 = FORMATS["float32"]
BF16 = FORMATS["bfloat16"]


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (aten.add.Tensor, "add"),
        (aten.add_.Tensor, "add"),
        (aten._softmax.default, "_softmax"),
        (aten.mm.out, "mm"),
    ],
)
def test_a_name_has_neither_namespace_nor_overload_nor_mark(func: Any, name: str) -> None:
    assert operator_name(func) == name


@pytest.mark.parametrize(
    "func",
    [
        aten.view.default,
        aten.transpose.int,
        aten.slice.Tensor,
        aten.expand.default,
        aten.cat.default,
        aten.where.self,
        aten.index_put_.default,
        aten.masked_fill_.Scalar,
        aten.copy_.default,
        aten.topk.default,
        aten.sort.default,
        aten.neg.default,
        aten.clamp.default,
        aten.embedding.default,
        aten.arange.default,
        aten._to_copy.default,
    ],
    ids=str,
)
def test_operators_that_move_values_are_exact(func: Any) -> None:
    assert is_exact(func)


@pytest.mark.parametrize(
    "func",
    [
        aten.add.Tensor,
        aten.mul_.Tensor,
        aten.mm.default,
        aten._softmax.default,
        aten.sum.dim_IntList,
        aten.rsqrt.default,
        aten.index_add_.default,
        aten.scatter_add.default,
        aten.addmm.default,
        aten.native_layer_norm.default,
        aten.cumsum.default,
    ],
    ids=str,
)
def test_operators_that_compute_are_not_exact(func: Any) -> None:
    assert not is_exact(func)


Code = Callable[[Tensor, Tensor], Tensor]
OPERATORS: dict[str, Code] = {
    "mm": lambda x, w: x @ w,
    "bmm": lambda x, w: x.unsqueeze(0) @ w.unsqueeze(0),
    "addmm": lambda x, w: torch.addmm(w[0], x, w),
    "sum": lambda x, w: x.sum(-1),
    "sum over rows": lambda x, w: x.sum(0),
    "mean": lambda x, w: x.mean(-1, keepdim=True),
    "softmax": lambda x, w: functional.softmax(x, -1),
    "log_softmax": lambda x, w: functional.log_softmax(x, -1),
    "silu": lambda x, w: functional.silu(x),
    "gelu": lambda x, w: functional.gelu(x),
    "gelu tanh": lambda x, w: functional.gelu(x, approximate="tanh"),
    "sigmoid": lambda x, w: torch.sigmoid(x),
    "tanh": lambda x, w: torch.tanh(x),
    "exp": lambda x, w: torch.exp(x),
    "rsqrt": lambda x, w: torch.rsqrt(x.abs().clamp_min(2.0**-100)),
    "layer_norm": lambda x, w: functional.layer_norm(x, (x.shape[-1],), w[:, 0], w[:, 1]),
    "layer_norm without weight": lambda x, w: functional.layer_norm(x, (x.shape[-1],)),
}


def scaled(x: Tensor) -> Tensor:
    return x * 8


def outliers(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 3] *= 200
    return x


def shifted(x: Tensor) -> Tensor:
    return x + 5


def sparse(x: Tensor) -> Tensor:
    return torch.where(x.abs() > 1.5, x, torch.zeros_like(x))


def tiny(x: Tensor) -> Tensor:
    return x * 2.0**-110


REGIMES = {
    "normal": lambda x: x,
    "large": scaled,
    "outlier channel": outliers,
    "shifted": shifted,
    "sparse": sparse,
    "tiny": tiny,
}


def errors_in_sigma(code: Code, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return |float32 - float64| beyond half an ulp and the bound, and the whole error, both in sigma."""
    arithmetic = Arithmetic(Rounding.none())
    shadows = arithmetic.shadow(x), arithmetic.shadow(w)
    with arithmetic:
        oracle = code(*shadows)
    assert isinstance(oracle, ShadowTensor)
    error = (code(x, w).to(torch.float64) - oracle.data64).abs()
    error = torch.where(oracle.data64.abs() <= F32.max, error, 0.0)
    half = ulp(oracle.data64, F32) / 2
    sigma = torch.zeros_like(half) if oracle.sigma64 is None else oracle.sigma64
    total = torch.hypot(sigma, half / math.sqrt(3))
    bound = torch.zeros_like(half) if oracle.bound64 is None else oracle.bound64
    return (error - half - bound).clamp_min(0) / sigma.clamp_min(2.0**-300), error / total


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", OPERATORS)
def test_sigma_covers_real_float32_kernels(name: str, regime: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x = REGIMES[regime](torch.randn(64, 768, generator=generator))
    w = torch.randn(768, 96, generator=generator) / math.sqrt(768)
    beyond, whole = errors_in_sigma(OPERATORS[name], x, w)
    assert float(beyond.max()) < tail_lambda(beyond.numel())
    assert float(whole.square().mean().sqrt()) <= 1.25


@pytest.mark.parametrize("name", ["mm", "sum", "softmax", "silu", "gelu", "layer_norm"])
def test_sigma_is_not_so_wide_that_it_hides_a_narrower_format(name: str) -> None:
    """Inputs rounded to TF32's 11 bits show against a float32 band."""
    generator = torch.Generator().manual_seed(4)
    x, w = torch.randn(64, 768, generator=generator), torch.randn(768, 96, generator=generator)
    narrow = (x.view(torch.int32) & -(1 << 13)).view(torch.float32)
    code = OPERATORS[name]
    arithmetic = Arithmetic(Rounding.none())
    shadows = arithmetic.shadow(x), arithmetic.shadow(w)
    with arithmetic:
        oracle = code(*shadows)
    assert isinstance(oracle, ShadowTensor)
    assert oracle.sigma64 is not None
    allowed = ulp(oracle.data64, F32) / 2 + tail_lambda(oracle.numel()) * oracle.sigma64
    error = (code(narrow, w).to(torch.float64) - oracle.data64).abs()
    assert bool((error > allowed).any())


def sigma_of(name: str, args: tuple[Any, ...], result: Any) -> Tensor:
    noise = operator_noise(name, args, {}, result, How())
    assert noise is not None
    assert isinstance(noise.sigma, Tensor)
    return noise.sigma


def test_a_matmuls_sigma_is_of_its_terms_not_of_its_result() -> None:
    """Terms that cancel leave the noise of their sum."""
    x = torch.tensor([[1e4, -1e4, 1.0]], dtype=torch.float64)
    w = torch.ones(3, 1, dtype=torch.float64)
    sigma = sigma_of("mm", (x, w), x @ w)
    assert 0.1 * 2.0**-24 * 1e4 < float(sigma) < 10 * 2.0**-24 * 1e4


def test_layer_norms_sigma_does_not_grow_with_its_bias() -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(8, 64, generator=generator, dtype=torch.float64)

    def sigma(bias: float) -> Tensor:
        args = (x, (64,), None, torch.full((64,), bias, dtype=torch.float64), 1e-5)
        return sigma_of("native_layer_norm", args, torch.native_layer_norm(*args))

    assert bool((sigma(10.0) <= 3.0 * 10.0 * 2.0**-24).all())


def test_an_operator_without_a_row_is_taken_as_correctly_rounded() -> None:
    x = torch.ones(2, dtype=torch.float64)
    assert operator_noise("add", (x, x), {}, x + x, How()) is None


@pytest.mark.parametrize("dims", [(), ([0],), ([-1],), ([0, 1],), (None,), ([1], True)])
def test_a_sum_has_sigma_in_its_results_shape(dims: tuple[Any, ...]) -> None:
    x = torch.ones(4, 6, dtype=torch.float64)
    result = torch.ops.aten.sum.dim_IntList(x, *dims) if dims else x.sum()
    sigma = sigma_of("sum", (x, *dims), result)
    assert sigma.shape == result.shape


def test_a_sum_of_one_term_has_no_noise_to_speak_of() -> None:
    x = torch.full((4, 1), 3.0, dtype=torch.float64)
    sigma = sigma_of("sum", (x, [1]), x.sum(1))
    assert bool((sigma < ulp(x.sum(1), F32)).all())


def test_grouped_matmul_is_every_group_by_its_expert() -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    w = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    made = KERNELS["_grouped_mm"](x, w, torch.tensor([2, 2, 7], dtype=torch.int32))
    assert torch.allclose(made[:2], x[:2] @ w[0])
    assert torch.allclose(made[2:], x[2:] @ w[2])


def test_grouped_matmul_of_another_form_is_refused() -> None:
    x = torch.ones(2, 3, 4, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="2-D by 3-D"):
        KERNELS["_grouped_mm"](x, x)


def attention_inputs(keys: int = 96, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(2, 4, keys, 32, generator=generator) for _ in range(3))
    return q * spread, k, v


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0], ids=["flat", "normal", "peaked"])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
def test_attentions_sigma_covers_the_float32_kernel(is_causal: bool, spread: float) -> None:
    q, k, v = attention_inputs(spread=spread)
    wide = [x.double() for x in (q, k, v)]
    made = attention(*wide, is_causal=is_causal, storage=F32, recipe=FUSED, with_noise=True)
    assert made.noise is not None
    assert not made.bound.any()
    error = (
        functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal).double() - made.output
    ).abs()
    beyond = (error - ulp(made.output, F32) / 2).clamp_min(0) / made.noise.sigma
    assert float(beyond.max()) < normal_lambda(error.numel())


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0], ids=["flat", "normal", "peaked"])
def test_attention_covers_probabilities_kept_in_16_bits(spread: float) -> None:
    q, k, v = (x.to(torch.bfloat16) for x in attention_inputs(spread=spread))
    wide = [x.double() for x in (q, k, v)]
    made = attention(*wide, storage=BF16, recipe=FUSED, with_noise=True)
    assert made.noise is not None
    assert made.bound is not None
    scores = (q.float() @ k.float().mT) / math.sqrt(32)
    narrow = (
        (functional.softmax(scores, -1).to(torch.bfloat16).double() @ v.double()).to(torch.bfloat16).double()
    )
    allowed = ulp(made.output, BF16) / 2 + made.bound + normal_lambda(made.output.numel()) * made.noise.sigma
    assert bool(((narrow - made.output).abs() <= allowed).all())
    # Scores in bfloat16 are another recipe's.
    rounded = functional.softmax(scores.to(torch.bfloat16).float(), -1).double() @ v.double()
    if spread == 4.0:
        assert bool(((rounded - made.output).abs() > allowed).any())
        loose = attention(*wide, storage=BF16, recipe=EAGER, with_noise=True)
        assert loose.noise is not None
        assert bool((loose.noise.sigma >= made.noise.sigma).all())


def test_attention_with_one_key_is_exact_but_for_float32() -> None:
    q, k, v = (x.double() for x in attention_inputs(keys=1))
    made = attention(q, k, v, storage=F32, recipe=FUSED, with_noise=True)
    assert torch.equal(made.output, v)
    assert made.noise is not None
    assert bool((made.noise.sigma <= v.abs() * 2.0**-24 + 2.0**-149).all())


def test_a_single_key_leaves_its_probability_nothing_to_round() -> None:
    q, k, v = (x.double() for x in attention_inputs(keys=4))
    made = attention(q, k, v, is_causal=True, storage=BF16, recipe=FUSED, with_noise=True)
    assert made.bound is not None
    assert not made.bound[..., 0, :].any()
    assert bool((made.bound[..., 1:, :] > 0).all())


def test_without_noise_probabilities_round_to_the_kernels_format() -> None:
    q, k, v = (x.double() for x in attention_inputs())
    oracle = attention(q, k, v, storage=BF16).output
    control = attention(q, k, v, storage=BF16, recipe=FUSED).output
    assert torch.allclose(oracle, torch.softmax(q @ k.mT / math.sqrt(32), -1) @ v, rtol=1e-13)
    difference = (control - oracle).abs().max()
    assert 2.0**-14 < float(difference) < 2.0**-6
