"""Statistics within propagated noise: bounds that no healthy tensor leaves, and faults that do."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.capturing.digest import statistics
from validator.checks.findings import Arm
from validator.comparing.stored_statistics import judge_statistics
from validator.numerics.formats import format_of

BF16 = format_of(torch.bfloat16)


def judged(ref, cand, sigma, multiplier=4.0):
    return judge_statistics(
        ref=statistics(ref),
        cand=statistics(cand),
        noise=statistics(sigma),
        fmt=BF16,
        multiplier=multiplier,
        of_elements=multiplier,
        shape=tuple(ref.shape),
        dims=("",) * ref.dim(),
    )


@given(seed=st.integers(0, 1000), spread=st.floats(0, 2), scale=st.floats(1e-3, 1e3))
def test_errors_within_the_multiplier_pass_even_if_all_go_the_same_way(seed, spread, scale):
    generator = torch.Generator().manual_seed(seed)
    ref = torch.randn(50, 20, generator=generator, dtype=torch.float64) * scale
    sigma = torch.rand(50, 20, generator=generator, dtype=torch.float64) * scale * spread
    cand = (ref + 3.99 * sigma).to(torch.bfloat16)
    assert judged(ref, cand, sigma)[0] is None


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda x: torch.where(x.abs() < 2, x * 1.1, x), "root mean square"),
        (lambda x: x + 0.2, "mean"),
        (lambda x: torch.where(x == x.max(), 100.0, x), "largest element"),
        (lambda x: torch.where(x == x.min(), -100.0, x), "smallest element"),
    ],
)
def test_what_moves_the_whole_tensor_or_an_extreme_is_named(change, what):
    torch.manual_seed(0)
    ref = torch.randn(100, 50)
    arm, evidence, words = judged(ref, change(ref), torch.full_like(ref, 1e-3))
    assert arm is Arm.MAX
    assert words == f"its {what} is off"
    assert evidence.max_over_band > 1


def test_a_permutation_passes_which_is_why_statistics_prove_nothing():
    torch.manual_seed(0)
    ref = torch.randn(100, 50)
    assert judged(ref, ref.flip(0), torch.full_like(ref, 1e-3))[0] is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_or_infinity_on_one_side_is_a_mismatch_unless_rounding_may_overflow(value):
    ref = torch.ones(10, 10)
    cand = ref.clone()
    cand[3, 4] = value
    assert judged(ref, cand, torch.zeros_like(ref))[0] is Arm.CLASS
    near = ref * 3e38
    cand = near.clone()
    cand[3, 4] = value
    assert judged(near, cand, torch.zeros_like(ref))[0] is None
