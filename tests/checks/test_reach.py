"""Code that is not linear within its rounding noise: a softmax whose winner rounding decides.

Scores of standard deviation 2000, from factors in bfloat16, are off by about 3.
"""

import pytest
import torch
from torch import Tensor, nn

from tests.checks.build import check
from validator.checks import replays
from validator.checks.findings import Outcome, Verdict

SPREAD = 2000.0
SEEDS = range(3)


class Attention(nn.Module):
    """Attention whose scores are kept in float32; `swapped` rows of it weigh their two best keys wrongly."""

    def __init__(self, swapped: Tensor | None = None) -> None:
        super().__init__()
        self.swapped = swapped

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q * 1.7).float() @ k.mT.float()
        p = torch.softmax(scores, -1)
        if self.swapped is not None:
            best = scores.topk(2, -1).indices
            exchanged = p.scatter(-1, best, p.gather(-1, best.flip(-1)))
            p = torch.where(self.swapped[..., None], exchanged, p)
        return (p @ v.float()).to(q.dtype)


def best_two(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return `[sequences]` which key wins, and by how much next to what each factor's rounding may move."""
    q, k = 1.7 * values["q"].double(), values["k"].double()
    best = (q @ k.mT).squeeze(1).topk(2, -1)
    first, second = (k[torch.arange(len(k)), best.indices[:, i]] for i in (0, 1))
    size = (q.squeeze(1) * (first - second)).norm(dim=-1)
    return best.indices[:, 0], (best.values[:, 0] - best.values[:, 1]) / size


def given(seed: int) -> dict[str, Tensor]:
    """Return queries `[sequences, 1, channels]`, keys and values `[sequences, keys, channels]`.

    In the first 8 sequences rounding to nearest makes another key win: of 50,000 those that this is least
    likely in.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(50_000, n, 16, generator=generator) for n in (1, 16, 16))
    drawn = {"q": q.bfloat16(), "k": (k * SPREAD / 1.7 / 4).bfloat16(), "v": v.bfloat16()}
    winner, gap = best_two(drawn)
    rounded = ((drawn["q"] * 1.7).float() @ drawn["k"].mT.float()).squeeze(1).argmax(-1)
    flipped = (rounded != winner).nonzero().flatten()
    least_likely = flipped[gap[flipped].argsort(descending=True)][:8]
    chosen = torch.cat([least_likely, (rounded == winner).nonzero().flatten()[:1000]])
    return {name: x[chosen] for name, x in drawn.items()}


def judged(seed: int, swapped: Tensor | None = None) -> Outcome:
    return check(Attention(), Attention(swapped), given(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_key_that_wins_by_rounding_is_healthy(seed: int) -> None:
    assert judged(seed).verdict is Verdict.ALIGNED


def test_it_takes_far_runs_to_see_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(x.what.startswith("a fault in") for x in judged(0).unobservable)
    monkeypatch.setattr(replays, "FAR_RUNS", 0)
    assert judged(0).verdict is Verdict.DIVERGENT


def test_a_key_that_can_not_win_by_rounding_diverges() -> None:
    _, gap = best_two(given(seed=0))
    # About a hundred times what rounding to bfloat16 moves it by.
    sequence = int((gap - 0.1).abs().argmin())
    swapped = torch.zeros(len(gap), 1, dtype=torch.bool)
    swapped[sequence] = True
    found = judged(0, swapped)
    assert found.verdict is Verdict.DIVERGENT
    assert found.findings[0].evidence.worst_index is not None
    assert found.findings[0].evidence.worst_index[0] == sequence
    assert found.findings[0].evidence.outside is not None
    assert found.findings[0].evidence.outside <= 16
