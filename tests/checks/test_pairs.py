"""The verdict on a pair, element by element and block by block."""

import math
from collections.abc import Sequence

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from validator.checks.findings import Arm, Evidence
from validator.checks.pairs import PairJudge, noise_lambda
from validator.numerics.bands import normal_lambda
from validator.numerics.formats import FORMATS

REF = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
SIGMA = torch.full(REF.shape, 0.01)


def judged(
    ref: Tensor,
    cand: Tensor,
    sigma: Tensor,
    *,
    block: int = 1000,
    real: Tensor | None = None,
    dims: Sequence[str] = ("batch", "token", "channel"),
) -> tuple[Arm | None, Evidence]:
    name = str(sigma.dtype).removeprefix("torch.")
    own = FORMATS.get(str(cand.dtype).removeprefix("torch."))
    judge = PairJudge(
        noise=iter(sigma.reshape(-1).split(7)),
        fmt=FORMATS.get(name),
        largest=0.0 if own is None else own.max,
        multiplier=8.0,
        shape=ref.shape,
        dims=dims,
        real=real,
    )
    for blocks in zip(ref.reshape(-1).split(block), cand.reshape(-1).split(block), strict=True):
        judge.add(*blocks)
    return judge.result()


def changed(index: tuple[int, ...], by: float) -> Tensor:
    other = REF.clone()
    other[index] += by
    return other


def test_what_is_within_lambda_sigma_is_explained() -> None:
    arm, evidence = judged(REF, REF + 0.079, SIGMA)
    assert arm is None
    assert evidence.max_over_band == pytest.approx(0.079 / 0.08, rel=1e-3)
    assert (evidence.outside, evidence.elements) == (0, REF.numel())


def test_one_element_beyond_is_found_with_its_place_and_values() -> None:
    cand = changed((2, 3, 5), 0.1)
    arm, evidence = judged(REF, cand, SIGMA)
    assert arm is Arm.MAX
    assert (evidence.outside, evidence.worst_index) == (1, (2, 3, 5))
    assert (evidence.reference, evidence.candidate) == (REF[2, 3, 5].item(), cand[2, 3, 5].item())
    assert evidence.max_over_band == pytest.approx(0.1 / 0.08, rel=1e-3)


def test_half_an_ulp_of_the_candidates_format_is_explained_without_noise() -> None:
    nothing = torch.zeros(REF.shape, dtype=torch.bfloat16)
    assert judged(REF, REF.bfloat16(), nothing)[0] is None
    assert judged(REF, REF.bfloat16() * 1.01, nothing)[0] is Arm.MAX


@pytest.mark.parametrize("block", [1, 5, 48, 192])
def test_blocks_of_any_size_give_the_same(block: int) -> None:
    cand = REF + 0.02 * torch.randn(REF.shape, generator=torch.Generator().manual_seed(3))
    assert judged(REF, cand, SIGMA / 4, block=block) == judged(REF, cand, SIGMA / 4)


def test_padding_is_not_judged() -> None:
    real = torch.ones(4, 6, dtype=torch.bool)
    real[2, 3] = False
    region = real[:, :, None].expand(REF.shape)
    arm, evidence = judged(REF, changed((2, 3, 5), 9.0), SIGMA, real=region, block=50)
    assert arm is None
    assert evidence.elements == REF.numel() - 8
    assert judged(REF, changed((2, 4, 5), 9.0), SIGMA, real=region, block=50)[0] is Arm.MAX


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_another_class_is_found_unless_rounding_can_carry_a_value_there(value: float) -> None:
    cand = REF.clone()
    cand[0, 0, 0] = value
    arm, evidence = judged(REF, cand, SIGMA)
    assert arm is Arm.CLASS
    assert evidence.worst_index == (0, 0, 0)
    anywhere = SIGMA.clone()
    anywhere[0, 0, 0] = math.inf
    assert judged(REF, cand, anywhere)[0] is None


def test_a_value_near_the_largest_may_overflow() -> None:
    ref = torch.full((1, 1, 8), 65000.0)
    cand = ref.half()
    cand[0, 0, 0] = math.inf
    assert judged(ref, cand, torch.full_like(ref, 100).half())[0] is None
    assert judged(ref, cand, torch.full_like(ref, 10).half())[0] is Arm.CLASS


def test_integers_must_be_equal() -> None:
    ref = torch.arange(48).view(1, 6, 8)
    assert judged(ref, ref.clone(), torch.zeros_like(ref))[0] is None
    other = ref.clone()
    other[0, 1, 2] = 7
    arm, evidence = judged(ref, other, torch.zeros_like(ref))
    assert (arm, evidence.outside, evidence.worst_index) == (Arm.EXACT, 1, (0, 1, 2))


def test_a_scalar_and_an_empty_tensor_are_judged_too() -> None:
    one = torch.tensor(1.0)
    assert judged(one, one * 2, one / 100, dims=())[0] is Arm.MAX
    empty = torch.empty(0, 3)
    assert judged(empty, empty, empty, dims=("", ""))[0] is None


@pytest.mark.parametrize("runs", [8, 12, 16, 64])
def test_lambda_allows_for_a_sigma_that_came_out_low(runs: int) -> None:
    factor = noise_lambda(10**6, runs) / normal_lambda(10**6)
    lowest = chi2.ppf(1e-5, runs) / runs
    assert factor == pytest.approx(max(1 / math.sqrt(2 * lowest), 1.2))
