"""Run as a program: captures on two ranks, each killed at a moment of its own.

    python killed_runs.py FOLDER SEED DELAY_S...

For each delay it forks both ranks of a run that captures to `FOLDER/runN`, and kills them that long after
they began, rank 1 after rank 0. It imports torch once for all: a rank is a fork of this process.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from validator.capturing.session import capture

STEPS = 12
LAYERS = 4
STEP_S = 0.08


class Step(nn.Module):
    """Adds one, and shares it with the other rank, which changes nothing."""

    def forward(self, x):
        y = x + 1
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        return y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Step() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def run_rank(rank, path, began):
    """Capture a run of which every value is known."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}.store", rank=rank, world_size=2)
    model, x = Model(), torch.zeros(30_000)
    os.write(began, b"x")
    with capture(model, path, flush_interval_s=0.05):
        for _ in range(STEPS):
            x = model(x)
            time.sleep(STEP_S)


def fork_rank(rank, path, began):
    child = os.fork()
    if child == 0:
        try:
            run_rank(rank, path, began)
        except BaseException as error:
            sys.stderr.write(f"rank {rank}: {error!r}\n")
            os._exit(1)
        os._exit(0)
    return child


def main(folder, seed, *delays):
    chance = random.Random(seed)
    for i, delay in enumerate(delays):
        path = Path(folder) / f"run{i}"
        reading, writing = os.pipe()
        children = [fork_rank(rank, path, writing) for rank in range(2)]
        os.close(writing)
        for _ in children:
            os.read(reading, 1)
        time.sleep(float(delay))
        for child in children:
            os.kill(child, signal.SIGKILL)
            time.sleep(chance.random() * 0.02)
        for child in children:
            os.waitpid(child, 0)
        os.close(reading)


if __name__ == "__main__":
    main(*sys.argv[1:])
