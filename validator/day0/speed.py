"""How fast the candidate is beside the reference, and what memory it takes; measured, never judged."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from validator.capturing.values import flatten
from validator.runs import feed
from validator.target import Target, load_target
from validator.testing.ranks import on_ranks

__all__ = ["Speed", "measure_speed"]

REPEATS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Times of one forward pass of both sides, measured in turn in one run.

    Attributes:
        reference_s: seconds of each pass of the reference.
        candidate_s: the same of the candidate, on its slowest rank.
        tokens: elements of the largest integer input, or None where there is none.
        peak_bytes: most memory that the candidate's worst rank had: of its accelerator, else of the process.
        of_device: whether that is an accelerator's.
    """

    reference_s: tuple[float, ...]
    candidate_s: tuple[float, ...]
    tokens: int | None
    peak_bytes: int
    of_device: bool

    @property
    def ratio(self) -> float:
        """How often the candidate runs in the time of one pass of the reference, by medians."""
        return statistics.median(self.reference_s) / statistics.median(self.candidate_s)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of the candidate, by its median."""
        return None if self.tokens is None else self.tokens / statistics.median(self.candidate_s)


def measure_speed(
    source: str,
    *,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    folder: Path,
    repeats: int = REPEATS,
) -> Speed:
    """Time both sides of a target on its inputs, after one pass that is not counted.

    Raises:
        ValidatorError: a side can't be built or run.
    """
    target = load_target(source, dtype=dtype, device=device, tp=tp)
    inputs = target.inputs()
    ours = _timed(target, target.reference(), inputs, repeats, "reference")
    ranks = on_ranks(
        _candidate, (source, dtype, device, tp, repeats), nproc=nproc, device=device, folder=folder
    )
    integers = [
        leaf.numel()
        for leaf in flatten(inputs).values()
        if isinstance(leaf, torch.Tensor) and not leaf.is_floating_point()
    ]
    peak, of_device = max(memory for _, memory in ranks)
    return Speed(
        reference_s=ours,
        candidate_s=tuple(max(times) for times in zip(*(times for times, _ in ranks), strict=True)),
        tokens=max(integers, default=None),
        peak_bytes=peak,
        of_device=of_device,
    )


def _candidate(
    rank: int,
    world_size: int,
    source: str,
    dtype: str | None,
    device: str | None,
    tp: int | None,
    repeats: int,
) -> tuple[tuple[float, ...], tuple[int, bool]]:
    target = load_target(source, dtype=dtype, device=device, tp=tp)
    times = _timed(target, target.candidate(), target.inputs(), repeats, "candidate")
    return times, _peak()


def _timed(
    target: Target, model: nn.Module, inputs: dict[str, Any], repeats: int, side: str
) -> tuple[float, ...]:
    def once() -> float:
        started = time.perf_counter()
        with torch.no_grad():
            feed(target, inputs, model, side)
        _wait()
        return time.perf_counter() - started

    once()
    return tuple(once() for _ in range(repeats))


def _wait() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _peak() -> tuple[int, bool]:
    """Return the most memory that this process had, and whether it is an accelerator's."""
    reads: Callable[[], int] | None = getattr(torch.accelerator, "max_memory_allocated", None)
    if torch.accelerator.is_available() and reads is not None:
        return reads(), True
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024), False
