"""Rounding float64 values to a narrower format on a CPU, compiled: one pass, whatever the values.

Shape legend: N = elements.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np

from validator.numerics.formats import Format

__all__ = ["Target", "nearest", "stochastic", "target_of"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Target(NamedTuple):
    """What the loops need of a `Format`, as plain numbers."""

    cut: int
    """How many low bits of a float64 a normal value has no room for."""
    min_normal: float
    max: float
    beyond: float
    """What stands for values beyond the largest."""
    small: float
    """Spacing of subnormals."""
    large: float
    """Spacing of the largest values."""


@cache
def target_of(fmt: Format) -> Target:
    """Return a format as the loops take it."""
    return Target(
        cut=53 - fmt.precision,
        min_normal=fmt.min_normal,
        max=fmt.max,
        beyond=math.inf if fmt.has_inf else fmt.max,
        small=math.ldexp(1.0, fmt.e_min - fmt.precision + 1),
        large=math.ldexp(1.0, fmt.e_max - fmt.precision + 1),
    )


def _compiled(function: _Function) -> _Function:
    decorator: Any = numba.njit(nogil=True, cache=True, error_model="numpy")
    compiled: _Function = decorator(function)
    return compiled


@_compiled
def _beyond_normal(y: float, steps: float, spacing: float, target: Target) -> float:
    """Return a subnormal or too large value of so many steps."""
    size = steps * spacing
    return math.copysign(target.beyond if size > target.max else size, y)


@_compiled
def nearest(y: np.ndarray, bits: np.ndarray, out: np.ndarray, out_bits: np.ndarray, target: Target) -> None:
    """Round to the nearest value, ties to even.

    Args:
        y: `[N]` float64.
        bits: `[N]` int64, the same memory.
        out: `[N]` float64, the result.
        out_bits: `[N]` int64, the same memory.
        target: the format.
    """
    half, keep = (1 << (target.cut - 1)) - 1, -1 << target.cut
    for i in range(y.size):
        size = abs(y[i])
        if size == 0 or target.min_normal <= size <= target.max:
            out_bits[i] = (bits[i] + half + ((bits[i] >> target.cut) & 1)) & keep
        elif math.isnan(size):
            out[i] = y[i]
        elif math.isinf(size):
            out[i] = math.copysign(target.beyond, y[i])
        else:
            spacing = target.small if size < target.min_normal else target.large
            out[i] = _beyond_normal(y[i], np.rint(size / spacing), spacing, target)


@_compiled
def stochastic(
    y: np.ndarray, bits: np.ndarray, out: np.ndarray, out_bits: np.ndarray, target: Target, seed: int
) -> None:
    """Round to one of the two neighbours, up with the probability that keeps the mean.

    Args:
        y: `[N]` float64.
        bits: `[N]` int64, the same memory.
        out: `[N]` float64, the result.
        out_bits: `[N]` int64, the same memory.
        target: the format.
        seed: of the random numbers.

    Source:
        SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    keep = -1 << target.cut
    state = np.uint64(seed)
    for i in range(y.size):
        state += np.uint64(0x9E3779B97F4A7C15)
        draw = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        draw = (draw ^ (draw >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        draw ^= draw >> np.uint64(31)
        size = abs(y[i])
        if size == 0 or target.min_normal <= size <= target.max:
            out_bits[i] = (bits[i] + np.int64(draw >> np.uint64(64 - target.cut))) & keep
        elif math.isnan(size):
            out[i] = y[i]
        elif math.isinf(size):
            out[i] = math.copysign(target.beyond, y[i])
        else:
            spacing = target.small if size < target.min_normal else target.large
            steps = size / spacing
            below = np.floor(steps)
            if np.float64(draw >> np.uint64(11)) * 2.0**-53 < steps - below:
                below += 1
            out[i] = _beyond_normal(y[i], below, spacing, target)
