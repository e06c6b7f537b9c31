"""Which difference between two runs counts, and which is the first."""

from pathlib import Path

import torch
from torch import Tensor, nn

from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.determinism.events import first_difference
from validator.determinism.records import Difference


class Kernel(nn.Module):
    """Writes to memory that its caller hands over; `reads` it before, or does not."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        made = x * 2 + (out if self.reads else 0)
        return made.clone()


class Caller(nn.Module):
    """Hands over what memory happened to hold: other values in each run."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.kernel = Kernel(reads)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.kernel(x, torch.rand_like(x))
        return made + 1


def difference(folder: Path, *, reads: bool) -> Difference | None:
    model, x = Caller(reads), torch.ones(2, 3)
    captures = []
    for name in ("a.h5", "b.h5"):
        capture_run(lambda: model(x), model, folder / name, proof=False)
        captures.append(open_capture(folder / name).all_ranks())
    return first_difference(*captures)


def test_memory_that_is_handed_over_and_not_read_is_no_difference(tmp_path: Path) -> None:
    assert difference(tmp_path, reads=False) is None


def test_memory_that_is_read_is_one(tmp_path: Path) -> None:
    found = difference(tmp_path, reads=True)
    assert found is not None
    assert (found.module, found.side, found.path) == ("kernel", "inputs", "out")
