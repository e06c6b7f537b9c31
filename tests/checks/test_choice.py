"""Of what was left out by choice nothing is claimed, and no verdict on a part reads as one on the whole."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from validator.align.traces import LeftOut
from validator.api import capture, check
from validator.checks.choice import said_of_choice
from validator.checks.findings import Outcome, Verdict

WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def narrowed(
    folder: Path,
    *,
    factor: float = 1.0,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    level: str = "full",
) -> Outcome:
    """Judge a capture of some modules of a port whose layer 1 multiplies what `up` makes by a factor."""
    port = Stack().bfloat16()
    forward = port.layers[1].up.forward
    port.layers[1].up.forward = lambda x: factor * forward(x)
    x = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.no_grad(), capture(port, folder / "cand.h5", include=include, exclude=exclude, level=level):
        port(x=x)
    return check(reference=Stack(), candidate=folder / "cand.h5", inputs={"x": x.float()}).outcome


def texts(outcome: Outcome) -> list[str]:
    return [*outcome.why_inconclusive, *outcome.notes]


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.INCONCLUSIVE), (1.01, Verdict.DIVERGENT)])
def test_of_what_was_not_included_one_line_is_said(tmp_path: Path, factor: float, verdict: Verdict) -> None:
    outcome = narrowed(tmp_path, factor=factor, include=["layers.1.up"])
    assert outcome.verdict is verdict
    assert {finding.module for finding in outcome.findings} == ({"layers.1.up"} if factor != 1 else set())
    assert texts(outcome) == [
        "10 modules, the model itself among them, were left out by --include layers.1.up: "
        "no check judged them"
    ]
    assert outcome.unchecked == ()
    assert not [said for said in outcome.unobservable if said.what == "a wrong expert"]
    assert outcome.run["candidate"]["modules"] == {"include": ["layers.1.up"]}


def test_what_was_excluded_is_judged_with_its_caller_and_the_run_is_aligned(tmp_path: Path) -> None:
    outcome = narrowed(tmp_path, exclude=["layers.1.*"])
    assert outcome.verdict is Verdict.ALIGNED
    assert texts(outcome) == [
        "2 modules were left out by --exclude 'layers.1.*': they were judged as part of what calls them"
    ]


def test_a_fault_in_what_was_excluded_shows_in_its_caller(tmp_path: Path) -> None:
    outcome = narrowed(tmp_path, factor=1.1, exclude=["layers.1.*"])
    assert {finding.module for finding in outcome.findings} == {"layers.1"}


def test_without_the_models_own_call_no_run_is_aligned(tmp_path: Path) -> None:
    outcome = narrowed(tmp_path, exclude=[""])
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert texts(outcome) == ["the model itself was left out by --exclude '': no check judged it"]


def test_a_layer_alone_is_judged_in_the_format_that_it_computes_in(tmp_path: Path) -> None:
    healthy = narrowed(tmp_path, include=["layers.1"])
    assert healthy.findings == ()
    assert healthy.why_inconclusive == (
        "10 modules, the model itself among them, were left out by --include layers.1: no check judged the "
        "model's output, layers.0.up, layers.0.down and 3 more",
    )
    (tmp_path / "faulty").mkdir()
    assert narrowed(tmp_path / "faulty", factor=1.1, include=["layers.1"]).verdict is Verdict.DIVERGENT


def test_samples_of_some_modules_leave_out_the_others_too(tmp_path: Path) -> None:
    outcome = narrowed(tmp_path, include=["layers.1*"], level="sample")
    assert outcome.verdict is Verdict.INCONCLUSIVE
    said = (
        "8 modules, the model itself among them, were left out by --include 'layers.1*': no check judged them"
    )
    assert outcome.why_inconclusive == (said,)
    (tmp_path / "other").mkdir()
    outcome = narrowed(tmp_path / "other", exclude=["layers.1.*"], level="sample")
    assert outcome.verdict is Verdict.ALIGNED
    assert any("judged as part of what calls them" in note for note in outcome.notes)


def test_a_part_of_what_was_left_out_that_was_judged_is_not_among_what_was_not() -> None:
    left_out = LeftOut(modules=("layers.0", "layers.0.up", "head"), options="--exclude x")
    reasons, notes = said_of_choice(Stack(), left_out, {"layers.0", "layers.0.up"})
    assert (reasons, notes) == (["3 modules were left out by --exclude x: no check judged head"], [])
    assert said_of_choice(Stack(), LeftOut(), ()) == ([], [])
    one = replace(left_out, modules=("head",))
    assert said_of_choice(Stack(), one, {"head"}) == (
        [],
        ["1 module was left out by --exclude x: it was judged as part of what calls it"],
    )
