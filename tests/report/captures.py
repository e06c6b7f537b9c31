"""A model of three layers in float16, healthy or with numbers that go wrong, and captures of it."""

from pathlib import Path

import torch
from torch import Tensor, nn

from validator.capturing.reader import Capture, open_capture
from validator.capturing.session import capture

WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.changed(self.down(torch.relu(self.up(x))))

    def changed(self, y: Tensor) -> Tensor:
        return y


class WithNan(Block):
    """One element is NaN."""

    def changed(self, y: Tensor) -> Tensor:
        y[0, 3, 2] = torch.nan
        return y


class Overflowing(Block):
    """Most elements are beyond the largest float16."""

    def changed(self, y: Tensor) -> Tensor:
        return y * 3e5


class Near(Block):
    """The largest element is just representable, and what follows does not add to it."""

    def changed(self, y: Tensor) -> Tensor:
        return y.clamp(-1, 1).masked_fill_(y == y.max(), 50_000.0)


class Tiny(Block):
    """Adds what is below the smallest normal value, in half of the elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()

    def changed(self, y: Tensor) -> Tensor:
        return self.scale(torch.ones_like(y))


class Scale(nn.Module):
    def forward(self, ones: Tensor) -> Tensor:
        small = ones * 1e-5
        small[..., ::2] = 0
        return small


class Net(nn.Module):
    def __init__(self, middle: type[Block]) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList([Block(), middle(), Block()])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        mask = torch.zeros(4, 4, dtype=x.dtype).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def captured(path: Path, middle: type[Block] = Block, *, calls: int = 1, level: str = "full") -> Capture:
    """Capture the model with a layer 1 of the given kind."""
    torch.manual_seed(0)
    net = Net(middle).half()
    with torch.no_grad(), capture(net, path, level=level):
        for _ in range(calls):
            net(torch.arange(4)[None])
    return open_capture(path)
