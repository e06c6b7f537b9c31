"""Operators under an emulation compute what was worked out by hand, and `check` sees the difference."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import validator
from validator.checks.findings import Verdict
from validator.emulate import Emulation, RoundingMode, emulate, emulate_module
from validator.errors import UsageError

TF32 = Emulation(factors="tf32")
IN_BF16 = Emulation(accumulate="bfloat16")
TOWARD_ZERO = Emulation(rounding=RoundingMode.TOWARD_ZERO)
TERMS = torch.tensor([[256.0, 1.0, 1.0, 1.0]])
ONES = torch.ones(4, 1)


def run(emulation: Emulation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with emulate(emulation):
        return function(*args, **kwargs)


@pytest.mark.parametrize(
    ("emulation", "expected"),
    [
        (Emulation(), 259.0),
        (IN_BF16, 256.0),
        (Emulation(split_k=2, partials="bfloat16"), 258.0),  # 257 -> 256, and 2
        (Emulation(split_k=2), 259.0),
        (Emulation(ranks=2, reduce="bfloat16"), 258.0),
        (Emulation(ranks=2), 259.0),
        (Emulation(split_k=9, ranks=9), 259.0),
    ],
)
def test_a_matrix_product_is_summed_as_asked(emulation: Emulation, expected: float) -> None:
    assert run(emulation, torch.mm, TERMS, ONES).item() == expected


def test_ranks_reduce_in_the_operands_format_by_default() -> None:
    product = run(Emulation(ranks=2), torch.mm, TERMS.bfloat16(), ONES.bfloat16())
    assert product.dtype == torch.bfloat16
    assert product.item() == 258.0


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (torch.mm, (TERMS, ONES), [[256.0]]),
        (torch.matmul, (TERMS[0], ONES[:, 0]), 256.0),
        (torch.matmul, (TERMS, ONES[:, 0]), [256.0]),
        (torch.bmm, (TERMS[None], ONES[None]), [[[256.0]]]),
        (F.linear, (TERMS[None], ONES.T, torch.tensor([8.0])), [[[264.0]]]),
        (torch.einsum, ("ij,jk->ik", TERMS, ONES), [[256.0]]),
        (functools.partial(torch.addmm, beta=2, alpha=3), (torch.tensor([1.0]), TERMS, ONES), [[770.0]]),
    ],
    ids=["mm", "dot", "mv", "bmm", "linear", "einsum", "addmm"],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_every_kind_of_product_is_summed_as_asked(
    mode: Any, function: Callable[..., Any], args: tuple[Any, ...], expected: Any
) -> None:
    with mode():
        assert run(IN_BF16, function, *args).tolist() == expected


def test_a_product_is_written_where_it_was_asked_to() -> None:
    out = torch.zeros(1, 1)
    assert run(IN_BF16, torch.mm, TERMS, ONES, out=out) is out
    assert out.item() == 256.0


def test_attention_is_taken_apart() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    exact = F.scaled_dot_product_attention(q, k, v)
    assert not torch.equal(run(TF32, F.scaled_dot_product_attention, q, k, v), exact)
    torch.testing.assert_close(
        run(TF32, F.scaled_dot_product_attention, q, k, v), exact, rtol=2e-3, atol=2e-3
    )


@pytest.mark.parametrize(
    ("factor", "expected"), [(1 + 2**-10, 1 + 2**-10), (1 + 2**-11, 1.0), (-1 - 2**-11, -1.0)]
)
def test_tf32_keeps_10_bits_of_a_factor(factor: float, expected: float) -> None:
    x = torch.tensor([[factor]])
    assert run(TF32, torch.mm, x, torch.ones(1, 1)).item() == expected
    assert run(TF32, torch.mm, torch.ones(1, 1), x).item() == expected
    assert run(TF32, torch.mul, x, 1.0).item() == factor  # no matrix product


def test_factors_are_rounded_to_the_format_that_is_asked_for() -> None:
    """1 + 2^-9 is a value of float16, and in bfloat16 it is 1."""
    x = torch.tensor([[1 + 2**-9 + 2**-20]])
    for fmt, expected in (("float16", 1 + 2**-9), ("bfloat16", 1.0)):
        assert run(Emulation(factors=fmt), torch.mm, x, torch.ones(1, 1)).item() == expected


def test_fp8_is_for_products_of_two_matrices_alone() -> None:
    x, w = torch.tensor([[448.0, 1.0625]]), torch.tensor([[448.0], [448.0]])
    assert run(Emulation(fp8=True), torch.mm, x, w).item() == 448 * 448 + 448
    assert run(Emulation(fp8=True), torch.bmm, x[None], w[None]).item() == 448 * 448 + 1.0625 * 448


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_results_are_rounded_toward_zero(sign: float) -> None:
    x = sign * torch.tensor([1.0], dtype=torch.bfloat16)
    y = sign * torch.tensor([0.75 * 2**-7], dtype=torch.bfloat16)
    assert (x + y).item() == sign * (1 + 2**-7)
    assert run(TOWARD_ZERO, torch.add, x, y).item() == sign
    assert run(TOWARD_ZERO, x.clone().add_, y).item() == sign
    assert run(TOWARD_ZERO, torch.tensor([sign * (1 + 0.75 * 2**-7)]).to, torch.bfloat16).item() == sign


def test_an_operator_in_place_changes_and_returns_its_tensor() -> None:
    x = torch.ones(2, dtype=torch.bfloat16)
    assert run(TOWARD_ZERO, x.mul_, 3) is x
    assert x.tolist() == [3.0, 3.0]


def test_stochastic_rounding_keeps_the_mean_and_repeats() -> None:
    x = torch.ones(20_000, dtype=torch.bfloat16)
    emulation = Emulation(rounding=RoundingMode.STOCHASTIC, seed=1)
    found = run(emulation, torch.add, x, 0.75 * 2**-7)
    assert set(found.tolist()) == {1.0, 1 + 2**-7}
    # The share that goes up is 0.75 with standard deviation sqrt(0.75 * 0.25 / 20,000) = 0.003.
    assert abs((found > 1).double().mean().item() - 0.75) < 0.018
    assert torch.equal(run(emulation, torch.add, x, 0.75 * 2**-7), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_subnormal_results_are_flushed_to_a_zero_of_their_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([2.0**-100, -(2.0**-100), 2.0**-96], dtype=dtype)
    flushed = run(Emulation(flush_subnormals=True), torch.mul, x, 2.0**-30)
    assert flushed.tolist() == [0.0, 0.0, 2.0**-126]
    assert flushed.signbit().tolist() == [False, True, False]


def test_subnormals_of_float16_stay() -> None:
    x = torch.tensor([2.0**-10], dtype=torch.float16)
    assert run(Emulation(flush_subnormals=True), torch.mul, x, 2.0**-10).item() == 2.0**-20


def test_float64_is_left_alone() -> None:
    terms = torch.tensor([[1.0, 2.0**-40]], dtype=torch.float64)
    everything = Emulation(accumulate="bfloat16", rounding=RoundingMode.TOWARD_ZERO)
    assert run(everything, torch.mm, terms, torch.ones_like(terms).T).item() == 1 + 2.0**-40


def test_products_that_can_not_be_taken_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="can't sum the products of aten::convolution"):
        run(TF32, nn.Conv1d(1, 1, 1), torch.ones(1, 1, 4))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 32)

    def forward(self, input_ids: Tensor) -> Tensor:
        head: Tensor = self.head(self.norm(self.embed(input_ids)))
        return head


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize(
    ("emulation", "verdict"),
    [(Emulation(), Verdict.ALIGNED), (TF32, Verdict.UNDECLARED_PRECISION)],
    ids=["float32", "tf32"],
)
def test_a_check_flags_tf32_at_the_matrix_product_and_not_float32(
    emulation: Emulation, verdict: Verdict
) -> None:
    candidate = net()
    emulate_module(candidate, emulation)
    inputs = {"input_ids": torch.arange(64).remainder(32).view(2, 32)}
    result = validator.check(reference=net(), candidate=candidate, inputs=inputs)
    assert result.verdict is verdict
    assert [finding.module for finding in result.findings] == ([] if verdict is Verdict.ALIGNED else ["head"])
