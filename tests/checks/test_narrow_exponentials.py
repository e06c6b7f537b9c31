"""Kernels for 16-bit values have fast exponentials: probabilities that 16 bits hold exactly don't hide that."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.checks.build import check
from validator.checks import replays
from validator.checks.findings import Arm, Outcome, Verdict

DTYPES = (torch.float16, torch.bfloat16)


class Steps(nn.Module):
    """Attention, step by step."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


class Fused(nn.Module):
    """torch's own kernel, whose result may be off by a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = scaled_dot_product_attention(q, k, v)
        return made if self.factor == 1 else (made.double() * self.factor).to(made.dtype)


def outcome(candidate: nn.Module, *, dtype: torch.dtype, keys: int, spread: float, seed: int = 0) -> Outcome:
    """Judge attention over so many keys, with scores of some standard deviation."""
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, 8, n, 16) for n in (128, keys, keys))
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


def test_exact_exponentials_would_not_explain_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "EXPONENTIAL", 0.0)
    assert outcome(Fused(), dtype=torch.float16, keys=8, spread=0.0).verdict is Verdict.DIVERGENT
    (found,) = outcome(Fused(), dtype=torch.float16, keys=64, spread=8.0).findings
    assert found.arm is Arm.GAIN


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(torch.float16, 1 + 2.0**-12.5), (torch.float16, 1 - 2.0**-12.5), (torch.bfloat16, 1 + 2.0**-10)],
    ids=str,
)
@pytest.mark.parametrize("keys", [8, 64])
def test_a_factor_beyond_it_diverges(dtype: torch.dtype, factor: float, keys: int) -> None:
    found = outcome(Fused(factor), dtype=dtype, keys=keys, spread=2.0 if keys == 64 else 0.0)
    assert found.verdict is Verdict.DIVERGENT
