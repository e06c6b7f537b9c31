"""What would have shown, held against what the rules say of edges that were really mutated."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.checks.build import check, feed, traced
from validator.align.traces import View
from validator.checks import explaining
from validator.checks.edges import EdgeJudge
from validator.checks.findings import Outcome, Verdict
from validator.checks.judge import Band, Bench, judge_edge
from validator.checks.policy import Policy
from validator.checks.resolution import Explanation, Resolution, rough_explanation
from validator.checks.walk import walk
from validator.numerics.formats import FORMATS, format_of
from validator.numerics.recipes import EAGER, FUSED
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
WIDTH = 64
BENCH = Bench(elements=10_000)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Layer(nn.Module):
    """Keeps its output before the last rounding, in float64."""

    before: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * normal(WIDTH, seed=1))


class Norm(Layer):
    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        self.before = self.weight.double() * normed.double()
        return self.weight * normed


class Linear(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(96, WIDTH, seed=1) / 8)

    def forward(self, x: Tensor) -> Tensor:
        self.before = functional.linear(x.float(), self.weight.float()).double()
        return functional.linear(x, self.weight)


class Attention(Layer):
    def forward(self, x: Tensor) -> Tensor:
        heads = (x * self.weight).view(*x.shape[:2], 4, 16).transpose(1, 2)
        scores = heads @ heads.transpose(2, 3) * 0.25
        probabilities = torch.softmax(scores.float(), -1).to(x.dtype)
        self.before = (probabilities.float() @ heads.float()).double()
        return probabilities @ heads


class Residual(Layer):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.before = x.double() + y.double()
        return x + y


def given(kind: type[Layer], dtype: torch.dtype, tokens: int = 32) -> dict[str, Any]:
    inputs = {"x": normal(4, tokens, WIDTH, seed=2).to(dtype)}
    if kind is Residual:
        # Far apart in size, so that few sums lie exactly between two values of the format: any change
        # would move those.
        scale = 1e-5 if dtype is torch.float32 else 0.03
        inputs["y"] = (scale * normal(4, tokens, WIDTH, seed=3)).to(dtype)
    return inputs


def judged(
    kind: type[Layer], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], Tensor]:
    """Judge a healthy layer; return what the resolution of its output was given, and it before rounding."""
    calls: list[dict[str, Any]] = []

    class Recorded(Resolution):
        def __init__(self, **figures: Any) -> None:
            calls.append(figures)
            super().__init__(**figures)

    monkeypatch.setattr(explaining, "Resolution", Recorded)
    inputs = given(kind, dtype)
    reference, candidate = kind(), kind().to(dtype)
    view = View(ranks=(0,))
    trace = traced(reference, candidate, inputs)
    judge = EdgeJudge(trace=trace, view=view, policy=Policy(allowed=(FUSED, EAGER)), bench=BENCH)
    walk(reference=reference, trace=trace, view=view, run=feed(inputs), judge=judge.judge, skip=judge.skip)
    assert not judge.said.findings
    assert not judge.said.gaps
    (figures,) = calls
    # A kernel that sums in another order rounds a few elements otherwise.
    alike = candidate.before.to(dtype) == figures["cand"]
    return figures, torch.where(alike, candidate.before, figures["cand"].double())


def fires(figures: dict[str, Any], before: Tensor, factor: float) -> bool:
    """Tell whether the rules show a factor on an edge, under every recipe."""
    dtype = figures["cand"].dtype
    cand = round_nearest(before * factor, format_of(dtype)).to(dtype)
    rest = {name: figures[name] for name in ("exact", "judged", "dims", "bench")}
    return all(
        judge_edge(cand=cand, band=x.band, control=x.control, **rest).arm is not None
        for x in figures["explanations"]
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("kind", [Norm, Linear, Attention, Residual])
def test_a_slightly_larger_factor_shows_and_a_third_of_it_does_not(
    kind: type[Layer], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, before = judged(kind, dtype, monkeypatch)
    smallest = Resolution(**figures).gain()
    assert 0 < smallest < 0.01
    # Both signs show; below, one may still do so by itself.
    assert all(fires(figures, before, 1 + sign * 1.2 * smallest) for sign in (1, -1))
    assert not all(fires(figures, before, 1 + sign * smallest / 3) for sign in (1, -1))


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(torch.tanh(x * self.weight) * 1.3) * x


class FusedGate(Gate):
    """The same in one kernel that keeps float32 inside."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        return (functional.silu(torch.tanh(x32 * self.weight.float()) * 1.3) * x32 * self.factor).to(x.dtype)


def outcome(factor: float) -> Outcome:
    candidate = FusedGate().bfloat16()
    candidate.factor = factor
    return check(Gate(), candidate, {"x": normal(4, 32, WIDTH).bfloat16()})


def test_what_only_the_strictest_recipe_would_show_does_not_count() -> None:
    """The candidate is fused, but `eager` is allowed too, and explains what `fused` does not."""
    healthy = outcome(1.0)
    (smallest,) = (j.smallest_gain for j in healthy.judgements if j.smallest_gain is not None)
    assert [j.recipe for j in healthy.judgements if j.smallest_gain is not None] == ["fused"]
    assert smallest > 1e-4
    assert outcome(1 + 1.5 * smallest).verdict is not Verdict.ALIGNED
    assert outcome(1 - 1.5 * smallest).verdict is not Verdict.ALIGNED
    assert outcome(1 + smallest / 3).verdict is Verdict.ALIGNED


def resolution(
    exact: Tensor, *, sigma_ulp: float = 0.0, bound: float = 0.0, judged: Tensor | None = None
) -> Resolution:
    """Return what a bfloat16 candidate would show that is off by `sigma_ulp` before its rounding."""
    sigma = sigma_ulp * ulp(exact, FORMATS["bfloat16"])
    return Resolution(
        exact=exact,
        cand=(exact + sigma * normal(*exact.shape, seed=9)).bfloat16(),
        explanations=[Explanation(band=Band(sigma=sigma, bound=bound, is_measured=True))],
        judged=judged,
        dims=("token", "channel"),
        bench=BENCH,
    )


def test_no_factor_shows_on_zeros() -> None:
    assert resolution(torch.zeros(32, 8, dtype=torch.float64)).gain() == math.inf


def test_no_factor_shows_where_nothing_is_judged() -> None:
    exact = normal(4, 8).double()
    assert resolution(exact, judged=torch.zeros(4, 1, dtype=torch.bool)).gain() == math.inf


def test_no_factor_shows_where_no_element_is_finite() -> None:
    nothing = resolution(torch.full((4, 8), math.nan, dtype=torch.float64))
    assert nothing.gain() == math.inf
    assert nothing.change(torch.ones(4, 8, dtype=torch.float64), tried=1) == math.inf


def test_one_element_shows_what_carries_it_over_its_band() -> None:
    """1 rounds to itself; with 2 ulp allowed on either side, 3 ulp up is the first value outside."""
    one = torch.ones(1, 1, dtype=torch.float64)
    spacing = 2.0**-7
    found = resolution(one, bound=1.5 * spacing).gain()
    # Upwards 2.5 ulp round to 3; downwards the spacing is half of that, and 2 ulp less half a step do.
    assert found == pytest.approx(2.5 * spacing)


def test_more_rows_show_less() -> None:
    """The error of the gain falls with the root of the number of rows."""
    few, many = (resolution(normal(n, WIDTH).double(), sigma_ulp=20).gain() for n in (32, 2048))
    assert many == pytest.approx(few / 8, rel=0.5)


def test_a_constant_that_moves_nothing_never_shows() -> None:
    exact = normal(32, WIDTH).double()
    assert resolution(exact).change(torch.zeros_like(exact), tried=1) == math.inf


def test_a_constant_shows_as_a_factor_of_what_it_moves() -> None:
    exact = normal(32, WIDTH).double()
    found = resolution(exact, sigma_ulp=1)
    assert found.change(0.01 * exact, tried=1) == pytest.approx(100 * found.gain())
    # Rounding the constant itself to the candidate's format must not show.
    assert found.change(exact, tried=1) == pytest.approx(2.0**-8, rel=0.1)


def test_what_must_not_move_is_infinite_where_nothing_is_judged() -> None:
    exact = normal(2, 4).double()
    allowance = resolution(exact, judged=torch.tensor([[True], [False]])).allowance()
    assert allowance[0].isfinite().all()
    assert allowance[1].isinf().all()


def test_a_rough_band_is_about_as_wide_as_the_measured_one() -> None:
    """Intermediates rounded to bfloat16: a first order error of uniform roundings, in ulp of the result."""
    y = normal(256, WIDTH).double()
    sigma = 1.5 * ulp(y, FORMATS["bfloat16"])
    # A run to nearest is off by sigma / sqrt(2), and then rounded.
    made = round_nearest(y + sigma / math.sqrt(2) * normal(256, WIDTH, seed=1).double(), FORMATS["bfloat16"])
    rough = rough_explanation(Band(), exact=y, control=made, dtype=torch.bfloat16).band
    assert float((rough.sigma / sigma).mean()) == pytest.approx(1.0, abs=0.1)
    assert rough.is_measured
