"""How long `validator.compare` takes beside h5py reading the same datasets, and how much memory.

    python benchmarks/compare_speed.py [--megabytes N] [--dtype T] [--repeat N]

Three pairs of captures that differ by rounding, without parameters (equal ones are not even read):

- one large tensor;
- a decoder of 12 layers, 2048 channels and 256 tokens: hundreds of tensors of the sizes that models have;
- a decoder of 60 layers, 64 channels and 8 tokens: thousands of tensors, too small for their bytes to count.

Just reading is what h5py does at its fastest: open both files, walk to every dataset of elements, and read it
in its own type, a chunk of 1 MiB at a time into one buffer, without a checksum. Times are the least of
several rounds, in which reading and comparing take turns. Memory is how much comparing adds to the peak of a
process that loaded everything, for one tensor of N, 4 N and 16 N MiB; it is measured on Linux alone.
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
from torch import Tensor, nn

import validator
from validator.capturing.session import capture

WIDTH = 4096
BLOCK_BYTES = 1 << 20
ALLOWED = 2.0
PEAK = """
import sys
from pathlib import Path
import torch
import validator
from validator.numerics.metrics import measure

def peak_kib():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])

small = torch.ones(4096, dtype=getattr(torch, sys.argv[3]))
measure(ref=small, cand=small)
Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is what comes next
before = peak_kib()
validator.compare(ref=sys.argv[1], cand=sys.argv[2])
print(peak_kib() - before)
"""

Paths = tuple[Path, Path]


class Linear(nn.Linear):
    """A projection in float32 arithmetic, whatever it is given: CPUs are slow in narrower ones."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `[*, out_features]` in the dtype of `x`."""
        return nn.functional.linear(x.float(), self.weight).to(x.dtype)


class Layer(nn.Module):
    """A decoder layer without masks and positions: only the sizes of its tensors matter here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.o = (Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (Linear(width, 2 * width, bias=False) for _ in range(2))
        self.act = nn.SiLU()
        self.down = Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next residual stream, `[1, tokens, width]`."""
        y = self.norms[0](x)
        heads = [part(y).float().unflatten(-1, (-1, 64)).transpose(1, 2) for part in (self.q, self.k, self.v)]
        mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        x = x + self.o(mixed.to(x.dtype))
        y = self.norms[1](x)
        branch: Tensor = self.down(self.act(self.gate(y)) * self.up(y))
        return x + branch


def main() -> int:
    """Print the table; return 1 where comparing realistic sizes takes longer than is allowed."""
    options = _options()
    dtype = getattr(torch, options.dtype)
    console = Console()
    speed = Table("captures", "MiB a side", "datasets", "read both, s", "compare, s", "ratio", box=None)
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases: dict[str, Callable[[], Paths]] = {
            "one large tensor": lambda: _one_tensor(folder, 16 * options.megabytes, dtype),
            "12 layers, 2048 channels, 256 tokens": lambda: _decoder(folder, 12, 2048, 256, dtype),
            "60 layers, 64 channels, 8 tokens": lambda: _decoder(folder, 60, 64, 8, dtype),
        }
        for label, make in cases.items():
            paths = make()
            reading, comparing = _least(options.repeat, paths, _read, _compare)
            ratios.append(comparing / reading)
            size, datasets = paths[0].stat().st_size / (1 << 20), _read(paths) // 2
            speed.add_row(
                label, f"{size:.0f}", str(datasets), f"{reading:.3f}", f"{comparing:.3f}", f"{ratios[-1]:.2f}"
            )
        console.print(speed)
        console.print(f"allowed is a ratio of {ALLOWED:.0f} for the first two")
        if sys.platform != "linux":
            return int(max(ratios[:2]) > ALLOWED)
        memory = Table("one tensor, MiB a side", "peak memory grows by, MiB", box=None)
        for megabytes in (options.megabytes, 4 * options.megabytes, 16 * options.megabytes):
            paths = _one_tensor(folder, megabytes, dtype)
            memory.add_row(str(megabytes), f"{_peak_mib(paths, options.dtype):.0f}")
        console.print(memory)
    return int(max(ratios[:2]) > ALLOWED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=32, metavar="N")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    return parser.parse_args()


def _one_tensor(folder: Path, megabytes: int, dtype: torch.dtype) -> Paths:
    rows = (megabytes << 20) // (WIDTH * dtype.itemsize)
    return _captured(folder, nn.Identity(), torch.randn(1, rows, WIDTH), dtype)


def _decoder(folder: Path, layers: int, width: int, tokens: int, dtype: torch.dtype) -> Paths:
    first = Layer(width)
    model = nn.Sequential(first)
    for _ in range(1, layers):  # all layers share their weights: they are not what is compared
        with torch.device("meta"):
            layer = Layer(width)
        for fqn, parameter in first.named_parameters():
            owner, _, leaf = fqn.rpartition(".")
            setattr(layer.get_submodule(owner), leaf, parameter)
        model.append(layer)
    return _captured(folder, model, torch.randn(1, tokens, width), dtype)


def _captured(folder: Path, model: nn.Module, x: Tensor, dtype: torch.dtype) -> Paths:
    """Capture two runs whose inputs differ by rounding, and with them every tensor."""
    paths = folder / "reference.h5", folder / "candidate.h5"
    noise = 1 + torch.finfo(dtype).eps * torch.randn(x.shape)
    for path, values in zip(paths, (x, x * noise), strict=True):
        with torch.no_grad(), capture(model, path, overwrite=True, parameter_limit_bytes=0):
            model(values.to(dtype))
    return paths


def _read(paths: Paths) -> int:
    """Read every dataset of elements, and return how many there are."""
    buffer = np.empty(BLOCK_BYTES, np.uint8)
    count = 0
    for path in paths:
        with h5py.File(path, "r") as file:
            datasets: list[h5py.Dataset] = []

            def note(_: str, node: object, found: list[h5py.Dataset] = datasets) -> None:
                if isinstance(node, h5py.Dataset) and "dtype" in node.attrs:
                    found.append(node)

            file.visititems(note)
            for dataset in datasets:
                _read_dataset(dataset.id, buffer)
            count += len(datasets)
    return count


def _read_dataset(dataset: h5py.h5d.DatasetID, buffer: np.ndarray) -> None:
    htype, (length,) = dataset.get_type(), dataset.shape
    step = BLOCK_BYTES // htype.get_size()
    for start in range(0, length, step):
        count = min(step, length - start)
        space = dataset.get_space()
        space.select_hyperslab((start,), (count,))
        dataset.read(h5py.h5s.create_simple((count,)), space, buffer, mtype=htype)


def _compare(paths: Paths) -> None:
    validator.compare(ref=paths[0], cand=paths[1])


def _least(repeat: int, paths: Paths, *works: Callable[[Paths], object]) -> list[float]:
    times = [[_timed(work, paths) for work in works] for _ in range(repeat + 1)]
    return [min(column) for column in zip(*times[1:], strict=True)]  # the first round compiles and warms up


def _timed(work: Callable[[Paths], object], paths: Paths) -> float:
    start = time.perf_counter()
    work(paths)
    return time.perf_counter() - start


def _peak_mib(paths: Paths, dtype: str) -> float:
    run = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, paths), dtype], capture_output=True, text=True, check=True
    )
    return int(run.stdout) / (1 << 10)


if __name__ == "__main__":
    sys.exit(main())
