"""What a run must tell of itself to be reproducible, from its hardware to its determinism flags."""

import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import h5py
import torch
import torch.distributed as dist

from .copies import HostCopy
from .digest import checksum, statistics
from .formats_hdf5 import dtype_name, element_bytes
from .records import Mesh

__all__ = ["describe_inputs", "describe_process", "describe_rank", "describe_run"]

_ENGINES = ("transformers", "vllm")
_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def describe_rank(rank: int) -> dict[str, Any]:
    """Return what may differ from rank to rank: the hardware with its identity, and the seed."""
    return {
        "rank": rank,
        "host": platform.node(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "devices": _devices(),
        "seed": torch.initial_seed(),
    }


def describe_run(
    *, ranks: list[dict[str, Any]], meshes: Iterable[Mesh], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata of a whole run, ready for JSON.

    Args:
        ranks: `describe_rank` of every rank.
        meshes: the device meshes that its tensors lay on.
        inputs: `describe_inputs` of what entered the model.
    """
    seeds = {str(r["rank"]): r["seed"] for r in ranks}
    return {
        "hardware": [{k: v for k, v in r.items() if k != "seed"} for r in ranks],
        "software": _software(),
        "parallelism": {
            "world_size": len(ranks),
            "backend": dist.get_backend() if _is_distributed() else None,
            "meshes": [asdict(mesh) for mesh in meshes],
        },
        "inputs": dict(inputs),
        "seeds": {"torch": seeds},
        "determinism": _determinism(),
    }


def describe_process(*, world_size: int) -> dict[str, Any]:
    """Return the metadata of figures that were taken on this machine, ready for JSON.

    Args:
        world_size: ranks that what was measured ran on.
    """
    return {
        "hardware": [{k: v for k, v in describe_rank(0).items() if k != "seed"}],
        "software": _software() | {name: _version(name) for name in _ENGINES},
        "parallelism": {"world_size": world_size},
        "inputs": {},
        "seeds": {},
        "determinism": _determinism(),
    }


def describe_inputs(inputs: Mapping[str, HostCopy]) -> dict[str, Any]:
    """Return dtype, shape, range, checksum and, for integers, the count of distinct values, by input."""
    return {name: _describe_input(copy) for name, copy in inputs.items()}


def _describe_input(copy: HostCopy) -> dict[str, Any]:
    tensor = copy.wait()
    numbers = statistics(tensor)
    described: dict[str, Any] = {
        "dtype": dtype_name(tensor.dtype),
        "shape": list(copy.layout.global_shape or copy.layout.shape),
        "checksum": checksum(element_bytes(tensor)),
    }
    if numbers is not None and tensor.numel():
        # As text where JSON has no number for it.
        described |= {name: _finite(getattr(numbers, name)) for name in ("min", "max", "mean", "rms")}
        described |= {"nan": numbers.nan, "inf": numbers.inf}
    if tensor.dtype in _INTEGERS:
        described["unique"] = tensor.unique().numel()
    return described


def _finite(value: float) -> float | str:
    return value if value - value == 0 else str(value)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _devices() -> list[dict[str, Any]]:
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    index = torch.accelerator.current_device_index()
    device: dict[str, Any] = {"type": str(kind), "index": index}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(index)
        device |= {
            "name": properties.name,
            "uuid": str(getattr(properties, "uuid", "")),
            "pci": _pci(properties),
            "memory_bytes": properties.total_memory,
            "capability": list(torch.cuda.get_device_capability(index)),
        }
    return [device]


def _pci(properties: Any) -> str | None:
    """Return the bus address as `lspci` writes it, where torch knows it."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    domain, bus, device = parts
    return None if None in parts else f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return models[0] if models else platform.processor()


def _software() -> dict[str, Any]:
    software: dict[str, Any] = {
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "h5py": h5py.version.version,
        "hdf5": h5py.version.hdf5_version,
        "validator": _version("accuracy-validator"),
    }
    for name in _ENGINES:
        if name in sys.modules:
            software[name] = _version(name)
    return software


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _determinism() -> dict[str, Any]:
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda_matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "bf16_reduced_precision_reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fp16_reduced_precision_reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "mkldnn": torch.backends.mkldnn.enabled,
        "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
