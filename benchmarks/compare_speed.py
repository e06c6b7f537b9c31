"""How long `validator.compare` takes beside h5py reading the same datasets, and how much memory.

    python benchmarks/compare_speed.py [--megabytes N ...] [--dtype T] [--repeat N]

Two captures of one tensor that differ by rounding are made for each size. Reading is what h5py does at its
fastest: each dataset at once, in its own type, without a checksum. Times are the least of several rounds, in
which the two take turns. Memory is how much comparing adds to the peak of a process that loaded everything.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import validator
from validator.capturing.session import capture

WIDTH = 4096
ALLOWED = 2.0
PEAK = """
import resource, sys
import validator
from validator.numerics.metrics import measure
import torch
small = torch.ones(4096, dtype=getattr(torch, sys.argv[3]))
measure(ref=small, cand=small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
validator.compare(ref=sys.argv[1], cand=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def main() -> int:
    """Print the table; return 1 where comparing takes longer than is allowed."""
    options = _options()
    table = Table("tensor", "read both, s", "compare, s", "ratio", "peak memory grows by", box=None)
    ratios = []
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            paths = _captures(Path(folder), megabytes, getattr(torch, options.dtype))
            reading, comparing = _least(options.repeat, paths, _read, _compare)
            ratios.append(comparing / reading)
            table.add_row(
                f"{options.dtype}, {megabytes} MiB a side",
                f"{reading:.3f}",
                f"{comparing:.3f}",
                f"{ratios[-1]:.2f}",
                f"{_peak_mib(paths, options.dtype):.0f} MiB",
            )
    console = Console()
    console.print(table)
    console.print(f"allowed is a ratio of {ALLOWED:.0f}")
    return int(max(ratios) > ALLOWED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[32, 128, 512], metavar="N")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    return parser.parse_args()


def _captures(folder: Path, megabytes: int, dtype: torch.dtype) -> tuple[Path, Path]:
    generator = torch.Generator().manual_seed(0)
    rows = (megabytes << 20) // (WIDTH * dtype.itemsize)
    exact = torch.randn(1, rows, WIDTH, generator=generator)
    step = torch.finfo(dtype).eps
    rounded = exact * (1 + step * torch.randn(exact.shape, generator=generator))
    paths = folder / "reference.h5", folder / "candidate.h5"
    for path, values in zip(paths, (exact, rounded), strict=True):
        model = nn.Identity()
        with capture(model, path):
            model(values.to(dtype))
    return paths


def _read(paths: tuple[Path, Path]) -> None:
    for path in paths:
        with h5py.File(path, "r") as file:
            datasets: list[h5py.Dataset] = []

            def note(_: str, node: object, found: list[h5py.Dataset] = datasets) -> None:
                if isinstance(node, h5py.Dataset) and "dtype" in node.attrs:
                    found.append(node)

            file.visititems(note)
            for dataset in datasets:
                data = np.empty(dataset.shape[0] * dataset.dtype.itemsize, np.uint8)
                dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=dataset.id.get_type())


def _compare(paths: tuple[Path, Path]) -> None:
    validator.compare(ref=paths[0], cand=paths[1])


def _least(repeat: int, paths: tuple[Path, Path], *works: Callable[[tuple[Path, Path]], None]) -> list[float]:
    times = [[_timed(work, paths) for work in works] for _ in range(repeat + 1)]
    return [min(column) for column in zip(*times[1:], strict=True)]  # the first round compiles and warms up


def _timed(work: Callable[[tuple[Path, Path]], None], paths: tuple[Path, Path]) -> float:
    start = time.perf_counter()
    work(paths)
    return time.perf_counter() - start


def _peak_mib(paths: tuple[Path, Path], dtype: str) -> float:
    run = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, paths), dtype], capture_output=True, text=True, check=True
    )
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return int(run.stdout) * unit / (1 << 20)


if __name__ == "__main__":
    sys.exit(main())
