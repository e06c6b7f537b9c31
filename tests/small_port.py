"""A target that is built, run and judged in a second: a language model of three modules, in plain torch."""

from pathlib import Path

SMALL_PORT = """
import os
import signal
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, vocabulary=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 64)
        self.up = nn.Linear(64, 128)
        self.head = nn.Linear(128, vocabulary, bias=False)

    def forward(self, input_ids):
        return self.head(torch.relu(self.up(self.embed(input_ids))))


def reference():
    return Net()


def candidate():
    return Net().to(torch.bfloat16)


def inputs():
    return {"input_ids": torch.arange(64).remainder(32).view(2, 32)}

"""


def write_port(folder: Path, changes: str = "", name: str = "port.py") -> Path:
    """Write the small port, with definitions that replace its own, and return its path."""
    path = folder / name
    path.write_text(SMALL_PORT + changes, encoding="utf-8")
    return path
