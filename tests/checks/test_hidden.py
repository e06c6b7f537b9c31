"""Compiled regions: what faults inside of them would show, and when a region is too deep to tell."""

import pytest
import torch
from torch import Tensor, nn

from tests.checks.build import captured, copied, feed
from validator.align.builder import build_trace
from validator.checks.engine import policy_of, run_checks
from validator.checks.findings import Outcome, Verdict
from validator.checks.hidden import unwrapped

WIDTH = 32


class Stack(nn.Module):
    """Layers that enlarge what is off by about `growth` each, so that noise fills everything in the end."""

    def __init__(self, depth: int, growth: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth)])
        self.growth = growth
        self.spoilt: tuple[int, float] | None = None

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            y = layer(x)
            if self.spoilt is not None and self.spoilt[0] == i:
                y = torch.cat([y[..., : WIDTH // 2], y[..., WIDTH // 2 :] * self.spoilt[1]], -1)
            x = torch.sin(y * self.growth)
        return x


class Region(nn.Module):
    """Keeps its modules to itself, as a compiled model does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.__dict__["model"] = model

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.model(x)
        return made


def judged(depth: int, growth: float, spoilt: tuple[int, float] | None = None) -> Outcome:
    reference, candidate = Stack(depth, growth).eval(), Stack(depth, growth).eval().to(torch.bfloat16)
    candidate.spoilt = spoilt
    x = torch.randn(2, 24, WIDTH, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    ours = captured(reference, copied({"x": x}, torch.float32))
    return run_checks(
        reference=reference,
        trace=build_trace(cand=[captured(Region(candidate), {"x": x})], ref=ours),
        run=feed({"x": x}),
        policy=policy_of(None),
        regions=[""],
    )


def reasons(outcome: Outcome) -> list[str]:
    return [why for why in outcome.why_inconclusive if "too deep" in why]


def slight(outcome: Outcome) -> list[str]:
    return [item.what for item in outcome.unobservable if item.what.startswith("half of the channels x1.01")]


def test_a_region_that_hides_no_gross_fault_is_not_too_deep() -> None:
    outcome = judged(2, 1.0)
    assert not outcome.findings
    assert not reasons(outcome)


def test_a_region_in_which_noise_fills_everything_is_too_deep_and_says_what_to_do() -> None:
    outcome = judged(12, 12.0)
    assert not outcome.findings
    assert outcome.verdict is Verdict.INCONCLUSIVE
    (why,) = reasons(outcome)
    assert "layers.0, layers.1 and" in why
    assert "12 modules inside" in why
    assert "Compile its blocks one by one" in why
    assert any("too deep" in gap.why for gap in outcome.unchecked)


def test_what_is_said_to_show_does_show_when_it_is_planted() -> None:
    assert judged(2, 1.0, spoilt=(0, 0.0)).verdict is Verdict.DIVERGENT


def test_what_is_said_not_to_show_is_not_found_when_it_is_planted() -> None:
    (what,) = slight(judged(6, 4.0))
    layer = what.partition("(layers.")[2][0]
    assert not judged(6, 4.0, spoilt=(int(layer), 1.01)).findings


@pytest.mark.parametrize(
    ("name", "region"),
    [("", ""), ("_orig_mod", ""), ("layers.0._orig_mod._orig_mod", "layers.0"), ("layers.0", "layers.0")],
)
def test_a_region_goes_by_the_name_of_its_outermost_wrapper(name: str, region: str) -> None:
    assert unwrapped(name) == region
