"""Bits are compared as bits: not after rounding, at every level, and what has no partner is named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import validator
from validator.baselines.bits import Bits, compare_bits
from validator.baselines.records import Baseline, Kind
from validator.baselines.results import BaselineCheck
from validator.capturing.reader import open_capture
from validator.checks.findings import Verdict


class Two(nn.Module):
    def __init__(self, dtype: torch.dtype, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 256).to(dtype)
        self.second = nn.Linear(256, 64).to(dtype)
        self.scale, self.dtype = scale, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x.to(self.dtype)) * self.scale)
        return y


def captured(path: Path, *, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0, **options: Any) -> Path:
    model = Two(dtype, scale).eval()
    x = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.no_grad(), validator.capture(model, path, **options):
        model(x=x)
    return path


def compared(then: Path, now: Path) -> Bits:
    return compare_bits(ref=open_capture(then), cand=open_capture(now))


@pytest.mark.parametrize("level", ["full", "sample", "stats"])
def test_the_same_run_has_the_same_bits_and_one_that_parts_is_seen_at_every_level(
    tmp_path: Path, level: str
) -> None:
    then = captured(tmp_path / "then.h5", level=level)
    again = compared(then, captured(tmp_path / "again.h5", level=level))
    assert (again.differing, again.unknown) == ((), ())
    assert again.compared == 4 + 6  # parameters; the input and output of two modules and of the model
    parted = compared(then, captured(tmp_path / "parted.h5", level=level, scale=1.5))
    assert parted.differing[0] == "second, input input"
    assert not any(name.startswith(("parameter", "first")) for name in parted.differing)


def test_a_single_element_beyond_the_sample_is_seen(tmp_path: Path) -> None:
    then = captured(tmp_path / "then.h5", level="sample")
    model = Two(torch.bfloat16, 1.0)
    x = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(1)).bfloat16()

    def odd(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[1, 17, 33] += 1
        return output

    model.second.register_forward_hook(odd)
    with torch.no_grad(), validator.capture(model, tmp_path / "now.h5", level="sample"):
        model(x=x)
    found = compared(then, tmp_path / "now.h5")
    assert found.differing
    assert all("output" in name for name in found.differing)


def test_another_format_is_other_bits_even_where_the_values_are_the_same(tmp_path: Path) -> None:
    then = captured(tmp_path / "then.h5", scale=0.0)
    found = compared(then, captured(tmp_path / "now.h5", dtype=torch.float32, scale=0.0))
    # Zeros, in both formats.
    assert "second, input input" in found.differing


def test_a_module_that_was_dropped_is_named(tmp_path: Path) -> None:
    whole = captured(tmp_path / "whole.h5")
    part = captured(tmp_path / "part.h5", include="first")
    lacking = compared(whole, part)
    assert lacking.differing == ()
    assert "second, input input: it was recorded, and the run lacks it" in lacking.unknown
    assert "parameter second.weight: it was recorded, and the run lacks it" in lacking.unknown
    more = compared(part, whole)
    assert "second, input input: the run has it, and none was recorded" in more.unknown


@pytest.mark.parametrize(
    ("bits", "why"),
    [
        (Bits(compared=3, differing=(), unknown=("second: the run lacks it",)), "second: the run lacks it"),
        (Bits(compared=0, differing=(), unknown=()), "no bits were compared"),
        (None, "bits were not compared"),
    ],
    ids=["unknown", "nothing", "none"],
)
def test_a_demand_for_bits_that_are_not_known_stays_open(bits: Bits | None, why: str) -> None:
    stored = Baseline(
        name="one", kind=Kind.RUN, folder=Path("one"), recorded="", command="", source="", run={}
    )
    demanded = BaselineCheck(baseline=stored, differences=(), bits=bits, demands_bits=True)
    assert (demanded.verdict, demanded.summary) == (Verdict.INCONCLUSIVE, f"inconclusive against one: {why}")
    bounded = BaselineCheck(baseline=stored, differences=(), bits=bits)
    assert bounded.verdict is Verdict.ALIGNED
