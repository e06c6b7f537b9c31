"""A narrowed capture holds what a capture of those modules alone would."""

from pathlib import Path

import pytest
import torch
from torch import nn

from validator.capturing.narrowing import narrowed, stored_bytes
from validator.capturing.reader import open_capture
from validator.capturing.records import RankCapture, TensorRef
from validator.capturing.session import capture_run


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(self.first(x))
        return made


def captured(path: Path, include: tuple[str, ...] | None = None) -> RankCapture:
    torch.manual_seed(0)
    model, x = Net(), torch.ones(2, 4)
    capture_run(lambda: model(x), model, path, proof=False, include=include)
    return open_capture(path).rank(0)


@pytest.mark.parametrize(
    "include", [("", "second.linear"), ("second", "second.linear"), ("first.linear",)], ids=" ".join
)
def test_a_narrowed_capture_holds_what_a_capture_of_these_modules_would(
    include: tuple[str, ...], tmp_path: Path
) -> None:
    narrow = narrowed(captured(tmp_path / "all.h5"), include.__contains__)
    alone = captured(tmp_path / "some.h5", include)

    def outline(capture: RankCapture) -> list[tuple[object, ...]]:
        modules = {call.id: call.module for call in capture.calls}
        return [
            (c.module, c.n, modules.get(-1 if c.parent is None else c.parent), sorted(c.inputs))
            for c in capture.calls
        ]

    assert outline(narrow) == outline(alone)
    assert set(narrow.parameters) == set(alone.parameters)
    assert stored_bytes([narrow]) == stored_bytes([alone])


def test_equal_bits_are_counted_once_and_those_of_each_rank_apart(tmp_path: Path) -> None:
    whole = captured(tmp_path / "all.h5")
    tensors = {
        (value.meta.checksum, value.meta.shape)
        for call in whole.calls
        for value in (*call.inputs.values(), *call.outputs.values())
        if isinstance(value, TensorRef)
    }
    parameters = 2 * (16 + 4) * 4
    assert stored_bytes([whole]) == len(tensors) * 8 * 4 + parameters
    assert stored_bytes([whole, whole]) == 2 * stored_bytes([whole])
