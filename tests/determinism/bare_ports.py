"""Ports that have less than a decoder: no dim of sequences, shared modules, one module, or a table alone."""

from pathlib import Path

__all__ = ["write_bare_port"]

PACKED = """
import torch
from torch import nn

WIDTH, CALLS = 32, 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, input_ids):
        x = self.embed(input_ids.flatten())
        for _ in range(CALLS):
            x = x + self.down(torch.relu(self.up(x)))
        return x.view(*input_ids.shape, WIDTH)


def reference():
    return Net()


def candidate():
    return Net().to(torch.bfloat16)


def inputs():
    return {"input_ids": torch.arange(24).view(2, 12)}
"""

PORTS = {
    "packed": PACKED,
    "packed, each module called twice": PACKED.replace("CALLS = 32, 1", "CALLS = 32, 2"),
    "one module": """
import torch
from torch import nn


def reference():
    return nn.Linear(4, 4)


def candidate():
    return reference().to(torch.bfloat16)


def run(model, inputs):
    return model(inputs["inputs_embeds"].to(model.weight.dtype))


def inputs():
    return {"inputs_embeds": torch.arange(24).view(2, 3, 4) / 8}
""",
    "table": """
import torch
from torch import nn


def reference():
    return nn.Sequential(nn.Embedding(8, 4))


def candidate():
    return reference().to(torch.bfloat16)


def run(model, inputs):
    return model(inputs["input_ids"])


def inputs():
    return {"input_ids": torch.arange(8).view(2, 4)}
""",
}


def write_bare_port(folder: Path, name: str) -> str:
    """Write a port as a target, and return its path."""
    path = folder / "port.py"
    path.write_text(PORTS[name], encoding="utf-8")
    return str(path)
