"""How fast the candidate is beside the reference, and what memory it takes; measured, never judged."""

import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from validator.capturing.metadata import describe_process
from validator.capturing.values import flatten
from validator.runs import feed
from validator.target import Target, load_target
from validator.testing.ranks import alone, on_ranks

__all__ = ["Speed", "measure_speed"]

REPEATS = 7
_RESET_PEAK = "5"  # proc(5): what /proc/self/clear_refs takes to reset the peak of the resident set


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Times of one forward pass of both sides, measured one after the other in processes of their own.

    Attributes:
        reference_s: seconds of each pass of the reference.
        candidate_s: the same of the candidate, on its slowest rank.
        tokens: elements of the largest integer input, or None where there is none.
        peak_bytes: most memory during the passes of the candidate's worst rank: of its accelerator, else of
            the process.
        of_device: whether that is an accelerator's.
        world_size: ranks of the candidate.
    """

    reference_s: tuple[float, ...]
    candidate_s: tuple[float, ...]
    tokens: int | None
    peak_bytes: int
    of_device: bool
    world_size: int = 1

    @property
    def ratio(self) -> float:
        """How often the candidate runs in the time of one pass of the reference, by medians."""
        return statistics.median(self.reference_s) / statistics.median(self.candidate_s)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of the candidate, by its median."""
        return None if self.tokens is None else self.tokens / statistics.median(self.candidate_s)

    def to_json(self) -> dict[str, Any]:
        """Return the document of figures that `validator baseline record NAME --figures` takes."""
        figures: dict[str, Any] = {
            f"{side} pass": {"value": statistics.median(times), "unit": "s", "samples": list(times)}
            for side, times in (("reference", self.reference_s), ("candidate", self.candidate_s))
        }
        if self.tokens is not None:
            rates = [self.tokens / seconds for seconds in self.candidate_s]
            figures["throughput"] = {"value": self.tokens_per_s, "unit": "tokens/s", "samples": rates}
        figures["peak memory"] = {"value": self.peak_bytes, "unit": "B"}
        return {"figures": figures, "run": describe_process(world_size=self.world_size)}


def measure_speed(
    source: str,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    repeats: int = REPEATS,
) -> Speed:
    """Time both sides of a target on its inputs, each after one pass that is not counted.

    Raises:
        ValidatorError: a side can't be built or run.
    """
    options = (source, dtype, device, tp, repeats)
    ours, _ = alone(_side, ("reference", *options))
    if nproc == 1:
        ranks = [alone(_side, ("candidate", *options))]
    else:
        with tempfile.TemporaryDirectory(prefix="validator-") as scratch:
            ranks = on_ranks(_candidate, options, nproc=nproc, device=device, folder=Path(scratch))
    inputs = flatten(load_target(source, dtype=dtype, device=device, tp=tp).inputs())
    integers = [
        leaf.numel()
        for leaf in inputs.values()
        if isinstance(leaf, torch.Tensor) and not leaf.is_floating_point()
    ]
    peak, of_device = max(memory for _, memory in ranks)
    return Speed(
        reference_s=ours,
        candidate_s=tuple(max(times) for times in zip(*(times for times, _ in ranks), strict=True)),
        tokens=max(integers, default=None),
        peak_bytes=peak,
        of_device=of_device,
        world_size=nproc,
    )


def _candidate(rank: int, world_size: int, *options: Any) -> tuple[tuple[float, ...], tuple[int, bool]]:
    return _side("candidate", *options)


def _side(
    side: str, source: str, dtype: str | None, device: str | None, tp: int | None, repeats: int
) -> tuple[tuple[float, ...], tuple[int, bool]]:
    """Return the seconds of each pass, and the most memory during them."""
    target = load_target(source, dtype=dtype, device=device, tp=tp)
    model = target.reference() if side == "reference" else target.candidate()
    inputs = target.inputs()
    on_device = _is_on_device(model)
    _once(target, model, inputs, side, on_device)
    _reset_peak(on_device)
    times = tuple(_once(target, model, inputs, side, on_device) for _ in range(repeats))
    return times, (_peak_bytes(on_device), on_device)


def _once(target: Target, model: nn.Module, inputs: dict[str, Any], side: str, on_device: bool) -> float:
    started = time.perf_counter()
    with torch.no_grad():
        feed(target, inputs, model, side)
    if on_device:
        torch.accelerator.synchronize()
    return time.perf_counter() - started


def _is_on_device(model: nn.Module) -> bool:
    """Whether a model lies on the accelerator of this machine."""
    if not torch.accelerator.is_available():
        return False
    kind = torch.accelerator.current_accelerator()
    tensors = [*model.parameters(), *model.buffers()]
    return kind is not None and any(tensor.device.type == kind.type for tensor in tensors)


def _reset_peak(on_device: bool) -> None:
    """Forget the peak so far, of loading weights; where the system can't, it counts."""
    if on_device:
        torch.accelerator.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return


def _peak_bytes(on_device: bool) -> int:
    if on_device:
        return int(torch.accelerator.max_memory_allocated())
    try:
        # What getrusage() tells on Linux has the peak of the process that started this one in it.
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)
