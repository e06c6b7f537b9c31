"""What the walk made of a module's weights is gone once the module is judged."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import validator
from validator.checks.edges import EdgeJudge
from validator.checks.module_code import Code
from validator.checks.tape import Tape


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(torch.nn.functional.silu(self.up(x)))
        return made


class Model(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_tapes_do_not_grow_in_number_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_tapes(6, monkeypatch) == most_tapes(2, monkeypatch)


def most_tapes(blocks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    alive = []
    judge = EdgeJudge.judge

    def counting(self: Any, code: Code) -> bool:
        alive.append(sum(isinstance(x, Tape) for x in gc.get_objects()))
        return judge(self, code)

    torch.manual_seed(0)
    reference, candidate = Model(blocks), Model(blocks)
    candidate.load_state_dict(reference.state_dict())
    inputs = {"ids": torch.arange(16).view(2, 8)}
    with monkeypatch.context() as patched:
        patched.setattr(EdgeJudge, "judge", counting)
        validator.check(reference=reference, candidate=candidate.to(torch.bfloat16), inputs=inputs)
    return max(alive)
