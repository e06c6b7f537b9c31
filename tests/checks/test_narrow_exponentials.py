"""Kernels for 16-bit values have fast exponentials, which probabilities that 16 bits hold exactly show."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.checks.build import check
from validator.checks import replays
from validator.checks.findings import Outcome, Verdict

DTYPES = (torch.float16, torch.bfloat16)


class Steps(nn.Module):
    """Attention, step by step."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


class Fused(nn.Module):
    """torch's own kernel for 16 bits."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v)


class Off(nn.Module):
    """Attention in float32, off by a factor, and rounded once."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.factor * scaled_dot_product_attention(q.float(), k.float(), v.float())).to(q.dtype)


def outcome(candidate: nn.Module, *, dtype: torch.dtype, keys: int, spread: float, seed: int = 0) -> Outcome:
    """Judge attention over so many keys, with scores of some standard deviation."""
    torch.manual_seed(seed)
    q, k, v = (torch.randn(64, 2, n, 16) for n in (16, keys, keys))
    given = {"q": spread * q, "k": k, "v": v}
    return check(Steps(), candidate, {name: x.to(dtype) for name, x in given.items()})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keys", [2, 4, 8, 16, 32])
def test_equal_scores_are_healthy(dtype: torch.dtype, keys: int) -> None:
    assert outcome(Fused(), dtype=dtype, keys=keys, spread=0.0).verdict is Verdict.ALIGNED


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spread", [2.0, 8.0, 30.0])
def test_a_key_that_nearly_always_wins_is_healthy(dtype: torch.dtype, spread: float) -> None:
    assert outcome(Fused(), dtype=dtype, keys=64, spread=spread).verdict is Verdict.ALIGNED


@pytest.mark.parametrize("sign", [1, -1])
def test_only_exponentials_that_are_not_exact_explain_it(monkeypatch: pytest.MonkeyPatch, sign: int) -> None:
    # What torch's kernels are off by on some processors and not on others.
    port = Off(1 + sign * 2.0**-14.5)
    assert outcome(port, dtype=torch.float16, keys=8, spread=0.0).verdict is Verdict.ALIGNED
    monkeypatch.setattr(replays, "EXPONENTIAL", 0.0)
    assert outcome(port, dtype=torch.float16, keys=8, spread=0.0).verdict is not Verdict.ALIGNED


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        pytest.param(torch.float16, 1 + 2.0**-12.5, id="float16, 4 times too large"),
        pytest.param(torch.float16, 1 - 2.0**-12.5, id="float16, 4 times too small"),
        pytest.param(torch.bfloat16, 1 + 2.0**-10, id="bfloat16, a quarter of its roundoff"),
    ],
)
@pytest.mark.parametrize(("keys", "spread"), [(8, 0.0), (64, 2.0)], ids=["equal scores", "peaked"])
def test_a_factor_beyond_it_is_seen(dtype: torch.dtype, factor: float, keys: int, spread: float) -> None:
    assert outcome(Off(factor), dtype=dtype, keys=keys, spread=spread).verdict is not Verdict.ALIGNED


def test_what_wider_formats_store_is_not_allowed_it() -> None:
    found = outcome(Off(1 + 2.0**-15), dtype=torch.float32, keys=64, spread=2.0)
    assert found.verdict is Verdict.DIVERGENT
