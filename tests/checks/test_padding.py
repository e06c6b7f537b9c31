"""Only positions that the attention mask of their own call of the model calls real are judged."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import validator
from tests.align.build import Recorder
from tests.checks.build import captured, check
from validator.capturing.records import RankCapture
from validator.checks.findings import Verdict
from validator.checks.padding import real_positions

WIDTH = 32
MASK = torch.tensor([[0, 0, 1], [1, 1, 1]])
OTHER = torch.tensor([[1, 1, 1], [0, 1, 1]])


class Masked(nn.Module):
    """Leaves at positions that are no real ones, and at `spoiled`, what it likes."""

    def __init__(self, spoiled: tuple[int, int, int] | None = None, padded: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.up.weight.copy_(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)))
            self.up.bias.zero_()
        self.spoiled = spoiled
        self.padded = padded
        self.calls = 0

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.up(x)
        if attention_mask is not None and attention_mask.dim() == 2:
            y = torch.where(attention_mask[..., None] != 0, y, y + self.padded)
        if self.spoiled is not None and self.spoiled[0] == self.calls:
            y = y.clone()
            y[self.spoiled[1:]] *= 2
        self.calls += 1
        return y


def given(mask: Tensor, seed: int = 0) -> dict[str, Tensor]:
    x = torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(seed))
    return {"x": x.bfloat16(), "attention_mask": mask}


def with_mask(mask: Tensor | None) -> RankCapture:
    inputs = {"x": torch.ones(2, 3, WIDTH)} | ({} if mask is None else {"attention_mask": mask})
    return captured(Masked(), inputs)


def test_real_positions_are_those_of_the_model_s_mask() -> None:
    found = real_positions(with_mask(MASK))
    assert found is not None
    assert found.keys() == {("", 0)}
    assert torch.equal(found["", 0], MASK.bool())


@pytest.mark.parametrize("mask", [None, torch.ones(2, 3), torch.ones(2, 3, 1)], ids=["none", "all", "3 dims"])
def test_without_padding_all_positions_are_real(mask: Tensor | None) -> None:
    assert real_positions(with_mask(mask)) is None


def test_without_calls_all_positions_are_real() -> None:
    assert real_positions(replace(with_mask(MASK), calls=())) is None


def test_the_real_tokens_of_a_step_are_the_last_ones_of_its_mask() -> None:
    recorder = Recorder()
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]])
    for start, stop in ((0, 2), (2, 4), (4, 5)):
        ids = torch.ones(2, stop - start, dtype=torch.int64)
        with recorder.call("", {"input_ids": ids, "attention_mask": mask[:, :stop]}):
            pass
    found = real_positions(recorder.capture())
    assert found is not None
    assert {n: real.tolist() for (_, n), real in found.items()} == {
        0: [[False, False], [False, True]],
        1: [[False, True], [True, True]],
    }


def test_each_call_of_the_model_has_its_own_padding() -> None:
    candidate = Masked(padded=5.0).bfloat16()
    assert check(Masked(), candidate, given(MASK), given(OTHER, 1)).verdict is Verdict.ALIGNED


def test_a_fault_where_another_call_is_padded_is_found() -> None:
    outcome = check(Masked(), Masked(spoiled=(1, 0, 1)).bfloat16(), given(MASK), given(OTHER, 1))
    assert outcome.verdict is Verdict.DIVERGENT
    (found,) = outcome.findings
    assert (found.module, found.call) == ("", 1)
    assert found.where["tokens"] == [1]


def test_padding_is_known_where_the_model_s_own_call_was_not_captured(tmp_path: Path) -> None:
    inputs = given(MASK)
    candidate = Masked().bfloat16()
    candidate.up.register_forward_hook(lambda module, args, y: torch.where(MASK[..., None] != 0, y, y + 5))
    with validator.capture(candidate, tmp_path / "up.h5", include="up"):
        candidate(**inputs)
    reference_inputs = {**inputs, "x": inputs["x"].float()}
    result = validator.check(reference=Masked(), candidate=tmp_path / "up.h5", inputs=reference_inputs)
    assert [finding.summary for finding in result.findings] == []
    assert any(row.module == "up" and row.verdict is Verdict.ALIGNED for row in result.outcome.judgements)
