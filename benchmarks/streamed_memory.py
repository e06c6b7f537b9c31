"""Peak memory of a check whose reference is streamed, next to the size of the checkpoint.

A Llama of random weights is written to a temporary folder, its candidate is captured, and `validator check
CHECKPOINT --capture candidate` is run in a process of its own. What counts are that process's anonymous
pages, above what its imports take; beside them stands all that it does not share, pages of files that nobody
else maps included. With `--in-memory` the same check with the reference in memory follows.

    python benchmarks/streamed_memory.py [--layers 64] [--hidden 1024] [--in-memory]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

CHECK = """
import importlib, json, sys
MODULES = "transformers.models.llama.modeling_llama validator.target_check validator.numerics.kernels"
for name in MODULES.split():
    importlib.import_module(name)
print("imported", flush=True)
sys.stdin.readline()
from pathlib import Path
result = sys.modules["validator.target_check"].check_target(sys.argv[1], capture=Path(sys.argv[2]))
print(json.dumps({"verdict": str(result.verdict.value)}), flush=True)
"""

TARGET = """
from pathlib import Path
from validator.checkpoint import checkpoint_functions
from validator.pretrained import load

FOLDER = Path({folder!r})
inputs = checkpoint_functions(FOLDER)["inputs"]

def reference():
    return load(FOLDER, dtype="auto")
"""

INTERVAL_S = 0.05
ALL_EVERY = 20  # samples: the kernel walks every page for what is not shared


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--in-memory", action="store_true", help="check with the reference in memory too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="streamed-") as scratch:
        folder, capture = Path(scratch) / "checkpoint", Path(scratch) / "candidate"
        size = write_checkpoint(folder, options)
        command = [sys.executable, "-m", "validator", "capture", f"{folder}:candidate", "-o", str(capture)]
        subprocess.run([*command, "--dtype", "bfloat16"], check=True, capture_output=True)
        report("streamed", folder, capture, size)
        if options.in_memory:
            target = Path(scratch) / "port.py"
            target.write_text(TARGET.format(folder=str(folder)))
            report("in memory", target, capture, size)


def report(name: str, target: Path, capture: Path, size: int) -> None:
    """Check a capture, and print its figures next to the size of the checkpoint in bytes."""
    figures = measure(target, capture)
    print(
        f"{name:10} {figures['verdict']}: checkpoint {size / 1e6:.0f} MB, peak private memory above imports "
        f"{figures['private'] / 1e6:.0f} MB (with pages of files {figures['with_files'] / 1e6:.0f} MB), "
        f"ratio {size / figures['private']:.1f}, {figures['seconds']:.0f} s",
        flush=True,
    )


def write_checkpoint(folder: Path, options: argparse.Namespace) -> int:
    """Write a model of random weights, and return the size of its files in bytes."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=options.tokens,
    )
    torch.set_default_dtype(getattr(torch, options.dtype))
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="200MB")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def measure(target: Path, capture: Path) -> dict[str, float | str]:
    """Check a capture in a process of its own, and return the peaks of its memory in bytes."""
    with subprocess.Popen(
        [sys.executable, "-c", CHECK, str(target), str(capture)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = of_status(process.pid), of_maps(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        began, anonymous, private, samples = time.monotonic(), 0, 0, 0
        while process.poll() is None:
            anonymous = max(anonymous, of_status(process.pid))
            if samples % ALL_EVERY == 0:
                private = max(private, of_maps(process.pid))
            samples += 1
            time.sleep(INTERVAL_S)
        seconds = time.monotonic() - began
        said = json.loads(process.stdout.readline())
    return {
        "private": anonymous - before[0],
        "with_files": private - before[1],
        "verdict": said["verdict"],
        "seconds": seconds,
    }


def of_status(pid: int) -> int:
    """Return a process's anonymous memory in bytes."""
    return _kilobytes(Path(f"/proc/{pid}/status")).get("RssAnon", 0) * 1024


def of_maps(pid: int) -> int:
    """Return all memory that a process does not share, in bytes."""
    found = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))
    return (found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)) * 1024


def _kilobytes(file: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1:] == ["kB"]}


if __name__ == "__main__":
    main()
