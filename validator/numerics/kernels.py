"""The inner loop of `numerics.metrics`, compiled: one pass over the values and bits of a pair of tensors.

Values come as float32 or float64, which hold those of every narrower format exactly; bits come in the one
format that steps are counted in. All formats go through one loop, compiled once for each width.

A run is the part of a row (of the last dim) inside a tile of `TILE` elements, counted from the tensor's
first. Sums are made run by run and then joined in order, so that they don't depend on how a tensor was cut
into blocks, as long as every block but the last holds whole tiles.

Shape legend: N = elements of a block, T = all slots: the sizes of the dims, one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np

from validator.numerics.formats import Format

__all__ = [
    "BINS",
    "BIN_BITS",
    "GUARD",
    "NEAR",
    "TILE",
    "Code",
    "Counts",
    "Moments",
    "code_of",
    "new_counts",
    "new_moments",
    "tally",
]

TILE = 2048
"""Elements whose sums are made together; a block but the last is a multiple of it."""

BIN_BITS = 8
"""Steps are counted exactly up to `2^(BIN_BITS + 1)`, from there in 2^BIN_BITS bins an octave."""

BINS = 63 << BIN_BITS

_Function = TypeVar("_Function", bound=Callable[..., Any])

GUARD = 1e-7
"""What MERE and MARE add to the denominator."""

NEAR = 1e-3
"""The relative difference of "within 0.1%"."""

_INT64_MAX = 2**63 - 1
_FEW = 256
_ONE = 1023 << BIN_BITS  # the bin of 1.0 when float64's top bits are taken as they are


class Code(NamedTuple):
    """How the bits of a format are read: what `tally` needs of a `Format`, as plain numbers."""

    magnitude: int
    """Mask of the bits without the sign."""
    sign: int
    """How far to shift the sign bit to the right."""


class Counts(NamedTuple):
    """Integers that `tally` adds to, each in an array."""

    whole: np.ndarray
    """`[9]`: finite pairs, differing bits, NaN (reference, candidate), infinities (reference, candidate),
    class mismatches, pairs within 0.1%, index of the first class mismatch or -1."""
    bins: np.ndarray
    """`[BINS]`: pairs by steps, but for those that are 0 apart."""
    worst: np.ndarray
    """`[1]`: index of the greatest |d|, or -1."""
    steps_max: np.ndarray
    """`[1]`."""


class Moments(NamedTuple):
    """Floating-point sums that `tally` adds to, each in an array."""

    whole: np.ndarray
    """`[13]`: means of ref and d; centred sums of ref^2, ref*d and d^2; sums of ref^2, ref*d, d^2, |d| and
    |d|/(|ref| + 1e-7); greatest |d|, |d|/|ref| and |d|/(|ref| + 1e-7)."""
    slots: np.ndarray
    """`[2, T]`: sums of d^2 and ref^2 at every index of every dim."""


def code_of(fmt: Format) -> Code:
    """Return how the bits of a format are read."""
    return Code(magnitude=(1 << (fmt.bits - 1)) - 1, sign=fmt.bits - 1)


def new_counts() -> Counts:
    """Return counts of nothing."""
    counts = Counts(
        whole=np.zeros(9, np.int64),
        bins=np.zeros(BINS, np.int64),
        worst=np.full(1, -1, np.int64),
        steps_max=np.zeros(1, np.int64),
    )
    counts.whole[8] = -1
    return counts


def new_moments(sizes: Sequence[int]) -> Moments:
    """Return sums over nothing, for a tensor of dims of these sizes."""
    return Moments(whole=np.zeros(13), slots=np.zeros((2, sum(sizes))))


def _compiled(**options: Any) -> Callable[[_Function], _Function]:
    decorator: Callable[[_Function], _Function] = numba.njit(
        nogil=True, cache=True, error_model="numpy", **options
    )
    return decorator


# NaN and infinity are replaced by 0 before anything is added, so that sums may be reordered into lanes.
_LANES = {"reassoc", "contract", "nsz", "nnan"}


@_compiled(inline="always")
def _steps(a: Any, b: Any, code: Any) -> Any:
    """Count the values between two of them; saturates, which only float64 can need."""
    p, q = a & code.magnitude, b & code.magnitude
    apart = p + q if (a ^ b) >> code.sign & 1 else abs(p - q)
    return apart if apart >= 0 else _INT64_MAX


@_compiled()
def _subtract(ref: Any, cand: Any, start: int, n: int, a: Any, d: Any, regular: Any) -> int:
    """Fill `a` with the reference and `d` with the difference, and return how many pairs are finite.

    `regular` gets all bits set where both sides are finite; elsewhere it, `a` and `d` get 0.
    """
    special: Any = 0
    for i in range(n):
        x, y = np.float64(ref[start + i]), np.float64(cand[start + i])
        finite = (abs(x) < np.inf) & (abs(y) < np.inf)
        a[i] = x if finite else 0.0
        d[i] = y - x if finite else 0.0
        regular[i] = -1 if finite else 0
        special += 0 if finite else 1
    return int(n - special)


@_compiled()
def _count_special(ref: Any, cand: Any, start: int, n: int, at: int, whole: Any) -> None:
    for i in range(start, start + n):
        x, y = ref[i], cand[i]
        whole[2] += np.isnan(x)
        whole[3] += np.isnan(y)
        whole[4] += np.isinf(x)
        whole[5] += np.isinf(y)
        are_special = not (np.isfinite(x) and np.isfinite(y))
        if are_special and x != y and not (np.isnan(x) and np.isnan(y)):
            whole[6] += 1
            if whole[8] < 0:
                whole[8] = at + i - start


@_compiled()
def _count_steps(
    ref: Any, cand: Any, code: Any, start: int, n: int, regular: Any, steps: Any, near: Any, counts: Any
) -> None:
    """Count a run's differing bits and its steps; `near` holds the counts of few steps until the end."""
    differing, ones, greatest = 0, 0, 0
    for i in range(n):
        x, y = np.int64(ref[start + i]), np.int64(cand[start + i])
        differing += 1 if x != y else 0
        apart = _steps(x, y, code) & regular[i]
        steps[i] = apart
        ones += 1 if apart == 1 else 0
        greatest = max(greatest, apart)
    counts.whole[1] += differing
    counts.steps_max[0] = max(counts.steps_max[0], greatest)
    if greatest <= 1:
        counts.bins[0] += ones
    elif greatest < _FEW:
        # Counted without a branch, and neighbours apart: most steps are equal, and would wait for each other.
        for i in range(n):
            near[i & 3, steps[i]] += 1
    else:
        for i in range(n):
            if steps[i] > 0:
                counts.bins[_bin(steps[i])] += 1


@_compiled(inline="always")
def _bin(steps: Any) -> Any:
    return (np.float64(steps).view(np.int64) >> (52 - BIN_BITS)) - _ONE


@_compiled(fastmath=_LANES)
def _add_moments(a: Any, d: Any, n: int, finite: int, seen: int, sums: Any, run: Any) -> None:
    """Join the sums of a run to those of the tensor."""
    # Values near each other would cancel in sums of squares; where some are missing 0 stands for them.
    shift = a[0] if finite == n else 0.0
    s_a = s_d = s_aa = s_ad = raw_aa = raw_ad = raw_dd = 0.0
    for i in range(n):
        value, diff = a[i], d[i]
        near = value - shift
        s_a += near
        s_d += diff
        s_aa += near * near
        s_ad += near * diff
        raw_aa += value * value
        raw_ad += value * diff
        raw_dd += diff * diff
    to_a, to_d = shift + s_a / finite - sums[0], s_d / finite - sums[1]
    share = finite / (seen + finite)
    sums[2] += s_aa - s_a * s_a / finite + to_a * to_a * seen * share
    sums[3] += s_ad - s_a * s_d / finite + to_a * to_d * seen * share
    sums[4] += raw_dd - s_d * s_d / finite + to_d * to_d * seen * share
    sums[0] += to_a * share
    sums[1] += to_d * share
    sums[5] += raw_aa
    sums[6] += raw_ad
    sums[7] += raw_dd
    run[0], run[1] = raw_dd, raw_aa


@_compiled(fastmath=_LANES)
def _add_relative(a: Any, d: Any, n: int, at: int, sums: Any, worst: Any) -> int:
    """Join a run's mean and greatest errors to those of the tensor; return how many are within 0.1%."""
    s_abs = s_rel = 0.0
    for i in range(n):
        error = abs(d[i])
        s_abs += error
        s_rel += error / (abs(a[i]) + GUARD)
    sums[8] += s_abs
    sums[9] += s_rel
    greatest, relative, guarded = sums[10], sums[11], sums[12]
    within, records = 0, 0
    for i in range(n):
        size, error = abs(a[i]), abs(d[i])
        within += 1 if error <= NEAR * size else 0
        records |= (error > greatest) | (error > relative * size) | (error > guarded * (size + GUARD))
    if records:  # seldom: a loop that only looks for records is several times faster than one that keeps them
        for i in range(n):
            size, error = abs(a[i]), abs(d[i])
            if error > sums[10]:
                sums[10] = error
                worst[0] = at + i
            if error > 0.0:
                sums[11] = max(sums[11], error / size)
                sums[12] = max(sums[12], error / (size + GUARD))
    return within


@_compiled(fastmath=_LANES)
def _add_row(a: Any, d: Any, n: int, slots: Any, first: int) -> None:
    for i in range(n):
        value, diff = a[i], d[i]
        slots[0, first + i] += diff * diff
        slots[1, first + i] += value * value


@_compiled()
def tally(
    ref: Any,
    cand: Any,
    ref_bits: Any,
    cand_bits: Any,
    code: Any,
    offset: int,
    sizes: Any,
    counts: Any,
    moments: Any,
) -> None:
    """Add a block to the counts and moments of a pair.

    Args:
        ref: `[N]` float32 or float64: the reference.
        cand: `[N]` float32 or float64: the candidate.
        ref_bits: `[N]` integers: bit patterns of the reference in the format that steps are counted in.
        cand_bits: `[N]` integers: the candidate's.
        code: how these two are read.
        offset: index of the block's first element in the tensor, a multiple of `TILE`.
        sizes: `[dims]` int64, without dims of size 1 and never empty.
        counts: added to.
        moments: added to.
    """
    a, d = np.empty(TILE), np.empty(TILE)
    regular, steps = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    near = np.zeros((4, _FEW), np.int64)
    run = np.empty(2)
    columns = sizes[-1]
    last_slot = moments.slots.shape[1] - columns
    start = 0
    while start < len(ref):
        at = offset + start
        n = min(TILE - at % TILE, columns - at % columns, len(ref) - start)
        finite = _subtract(ref, cand, start, n, a, d, regular)
        if finite < n:
            _count_special(ref, cand, start, n, at, counts.whole)
        _count_steps(ref_bits, cand_bits, code, start, n, regular, steps, near, counts)
        if finite:
            _add_moments(a, d, n, finite, counts.whole[0], moments.whole, run)
            within = _add_relative(a, d, n, at, moments.whole, counts.worst)
            counts.whole[7] += within - (n - finite)
            counts.whole[0] += finite
            row, slot = at // columns, last_slot
            for dim in range(len(sizes) - 2, -1, -1):
                slot -= sizes[dim]
                here = slot + row % sizes[dim]
                row //= sizes[dim]
                moments.slots[0, here] += run[0]
                moments.slots[1, here] += run[1]
            _add_row(a, d, n, moments.slots, last_slot + at % columns)
        start += n
    for few in range(1, _FEW):
        counts.bins[_bin(few)] += near[:, few].sum()
