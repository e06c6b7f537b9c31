"""How far apart two tensors are: every figure in one pass, in as little memory as a block needs.

Elements that are NaN or infinite on either side are counted and enter no other figure. Sums are float64;
they come out the same to the last bit however the pass was cut into blocks (see `numerics.kernels`).

Shape legend: * = any shape, equal on both sides; T = indices of one dim.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np
import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import FORMATS, Format
from validator.numerics.kernels import (
    BIN_BITS,
    TILE,
    Counts,
    Moments,
    code_of,
    new_counts,
    new_moments,
    tally,
)
from validator.numerics.rounding import round_nearest

__all__ = ["DimErrors", "Metrics", "measure", "measure_blocks"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SMALL = 1 << 18  # elements of a tensor that is read and measured before a thread has started
_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class DimErrors:
    """Relative errors along one dim of a tensor: of every token, channel, head, expert or shard.

    Attributes:
        dim: which dim.
        squared_error: `[T]` float64, sum of d^2 at each index.
        squared_norm: `[T]` float64, sum of ref^2 at each index.
    """

    dim: int
    squared_error: Tensor
    squared_norm: Tensor

    @property
    def rel_l2(self) -> Tensor:
        """`[T]` `||d|| / ||ref||` at each index; 0 where nothing differs, infinity where only ref is 0."""
        ratio = (self.squared_error / self.squared_norm).sqrt()
        return ratio.masked_fill(self.squared_error == 0, 0.0)

    @property
    def worst(self) -> int:
        """The index with the greatest `rel_l2`, the first of several."""
        return int(self.rel_l2.argmax())

    def over(self, start: int, stop: int) -> float:
        """Return `||d|| / ||ref||` of a range of indices: of the shard that a rank holds."""
        error = float(self.squared_error[start:stop].sum())
        return _ratio(math.sqrt(error), math.sqrt(float(self.squared_norm[start:stop].sum())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The figures of a pair, d being candidate minus reference. Ratios are over pairs that are finite.

    A figure is NaN where nothing finite was compared, or where its formula says 0/0. For integers, booleans
    and packed codes only the counts of elements and of mismatches, and the worst index, have a meaning.

    Attributes:
        elements: how many the tensors have.
        compared: how many of them are finite on both sides.
        mismatched: how many are not bit-identical, in the format that steps are counted in.
        class_mismatched: how many are NaN on one side only, infinite on one side only, or infinities of
            opposite signs.
        nan_reference: NaN of the reference.
        nan_candidate: NaN of the candidate.
        inf_reference: infinities of the reference.
        inf_candidate: infinities of the candidate.
        max_abs: greatest |d|.
        mean_abs: mean |d|.
        max_rel: greatest |d|/|ref|; 0 where both are 0, infinity where only ref is.
        rel_l2: `||d|| / ||ref||`.
        rms: `sqrt(mean(d^2))`.
        bias: mean of d.
        gain: least-squares slope of d on ref, `sum(d ref) / sum(ref^2)`.
        cosine: `sum(ref cand) / (||ref|| ||cand||)`. Shown, never judged by.
        pcc: Pearson's correlation. Shown, never judged by.
        snr_db: `20 log10(||ref|| / ||d||)`.
        steps_format: format that steps are counted in: the coarser one where the sides differ, with the finer
            side rounded to it.
        ulp_steps_max: most representable values between two elements of a pair.
        ulp_steps_p50: half of the pairs are at most so many steps apart. Exact up to 512, from there to 0.4%.
        ulp_steps_p99: the same for 99%.
        ulp_steps_p999: the same for 99.9%.
        ulp_steps_histogram: how many pairs are 0 steps apart, 1, 2-3, 4-7, 8-15, ...
        mere: mean of `|d| / (|ref| + 1e-7)`. Shown, never judged by.
        mare: greatest `|d| / (|ref| + 1e-7)`. Shown, never judged by.
        within_0p1_percent: share of pairs with `|d| <= 0.001 |ref|`. Shown, never judged by.
        worst_index: of the first class mismatch, else of the greatest |d|; for integers of the first
            mismatch. None where nothing differs.
        worst_reference: the reference there.
        worst_candidate: the candidate there.
        dims: errors along each dim of more than one index.

    Source:
        mere and mare: CANN's open precision standard for operators (gitcode.com/cann/opbase,
        docs/zh/ops_precision_standard/experimental_standard.md). Share within 0.1%, as "One Thousandth
        Err Ratio", and cosine: MindStudio msprobe's comparison of dumps.
    """

    elements: int
    compared: int = 0
    mismatched: int = 0
    class_mismatched: int = 0
    nan_reference: int = 0
    nan_candidate: int = 0
    inf_reference: int = 0
    inf_candidate: int = 0
    max_abs: float = math.nan
    mean_abs: float = math.nan
    max_rel: float = math.nan
    rel_l2: float = math.nan
    rms: float = math.nan
    bias: float = math.nan
    gain: float = math.nan
    cosine: float = math.nan
    pcc: float = math.nan
    snr_db: float = math.nan
    steps_format: str = ""
    ulp_steps_max: int | None = None
    ulp_steps_p50: int | None = None
    ulp_steps_p99: int | None = None
    ulp_steps_p999: int | None = None
    ulp_steps_histogram: tuple[int, ...] = ()
    mere: float = math.nan
    mare: float = math.nan
    within_0p1_percent: float = math.nan
    worst_index: tuple[int, ...] | None = None
    worst_reference: float | complex | None = None
    worst_candidate: float | complex | None = None
    dims: tuple[DimErrors, ...] = ()


def measure(*, ref: Tensor, cand: Tensor) -> Metrics:
    """Measure a pair of tensors.

    Args:
        ref: `[*]` reference, of any dtype.
        cand: `[*]` candidate; floating if `ref` is, of the same dtype or of another one.

    Raises:
        ComparisonError: shapes differ, or numbers of one kind are compared with those of another.
    """
    if ref.shape != cand.shape:
        raise ComparisonError(
            f"ref has shape {list(ref.shape)} and cand has shape {list(cand.shape)}: they must be equal"
        )
    return measure_blocks(ref=_blocks(ref), cand=_blocks(cand), shape=ref.shape)


def measure_blocks(
    *,
    ref: Iterable[Tensor],
    cand: Iterable[Tensor],
    shape: Sequence[int],
    also: Callable[[Tensor, Tensor], None] | None = None,
) -> Metrics:
    """Measure a pair whose elements come in blocks.

    Args:
        ref: the reference's elements in row-major order, in flat CPU tensors of any lengths, one at least.
        cand: the candidate's; its lengths may be others. Both are read to their ends.
        shape: of the whole tensors.
        also: called with each pair of blocks of one length, in order; complex numbers come by their parts.

    Raises:
        ComparisonError: the blocks don't add up to `shape`, or numbers of one kind are compared with those
            of another.
    """
    ref, cand = iter(ref), iter(cand)
    one, other = next(ref, None), next(cand, None)
    if one is None or other is None:
        raise ComparisonError("no block came from one side: give one at least, an empty one if need be")
    whole = (*shape, 2) if one.is_complex() else tuple(shape)
    meter = _meter(one.dtype, other.dtype, whole)
    left, right = (map(_plain, chain([first], more)) for first, more in ((one, ref), (other, cand)))
    blocks = _side_by_side(left, right, prod(whole))
    for block, its_match in blocks if prod(whole) < _SMALL else _read_ahead(blocks):
        meter.add(block, its_match)
        if also is not None:
            also(block, its_match)
    return meter.result()


class _FloatMeter:
    """Measures floating pairs."""

    def __init__(self, ref: Format, cand: Format, shape: tuple[int, ...]) -> None:
        self._rounded = cand if cand.precision <= ref.precision else ref
        self._shape = shape
        sizes = [size for size in shape if size > 1] or [1]
        self._sizes = np.array(sizes, np.int64)
        self._counts: Counts = new_counts()
        self._moments: Moments = new_moments(sizes)
        self._offset = 0
        self._worst: tuple[int, float, float] | None = None

    def add(self, ref: Tensor, cand: Tensor) -> None:
        """Add a block, whose length is a multiple of `TILE` or that is the last."""
        tally(
            _values(ref),
            _values(cand),
            _bits(_round(ref, self._rounded)),
            _bits(_round(cand, self._rounded)),
            code_of(self._rounded),
            self._offset,
            self._sizes,
            self._counts,
            self._moments,
        )
        broken, greatest = int(self._counts.whole[8]), int(self._counts.worst[0])
        at = broken if broken >= 0 else greatest
        if at >= self._offset:
            here = at - self._offset
            self._worst = at, float(ref[here].double()), float(cand[here].double())
        self._offset += ref.numel()

    def result(self) -> Metrics:
        """Return the figures of all that was added."""
        finite, mismatched, nan_ref, nan_cand, inf_ref, inf_cand, broken, within, _ = map(
            int, self._counts.whole
        )
        _, bias, var_ref, cov, var_d, aa, ad, dd, s_abs, s_rel, max_abs, max_rel, mare = map(
            float, self._moments.whole
        )
        n = finite or math.nan
        norm, error = math.sqrt(aa), math.sqrt(dd)
        histogram, percentiles = self._steps(finite)
        at = self._worst
        return Metrics(
            elements=self._offset,
            compared=finite,
            mismatched=mismatched,
            class_mismatched=broken,
            nan_reference=nan_ref,
            nan_candidate=nan_cand,
            inf_reference=inf_ref,
            inf_candidate=inf_cand,
            max_abs=max_abs if finite else math.nan,
            mean_abs=s_abs / n,
            max_rel=max_rel if finite else math.nan,
            rel_l2=_ratio(error, norm) if finite else math.nan,
            rms=math.sqrt(dd / n),
            bias=bias if finite else math.nan,
            gain=ad / aa if aa else math.nan,
            cosine=_quotient(aa + ad, math.sqrt(max(aa * (aa + 2 * ad + dd), 0.0))),
            pcc=_quotient(var_ref + cov, math.sqrt(max(var_ref * (var_ref + 2 * cov + var_d), 0.0))),
            snr_db=_decibel(norm, error),
            steps_format=self._rounded.name,
            ulp_steps_max=int(self._counts.steps_max[0]) if finite else None,
            ulp_steps_p50=percentiles[0],
            ulp_steps_p99=percentiles[1],
            ulp_steps_p999=percentiles[2],
            ulp_steps_histogram=histogram,
            mere=s_rel / n,
            mare=mare if finite else math.nan,
            within_0p1_percent=within / n,
            worst_index=None if at is None else _unravel(at[0], self._shape),
            worst_reference=None if at is None else at[1],
            worst_candidate=None if at is None else at[2],
            dims=self._dims(),
        )

    def _steps(self, finite: int) -> tuple[tuple[int, ...], list[int | None]]:
        if not finite:
            return (), [None] * 3
        bins = self._counts.bins
        zeros = finite - int(bins.sum())
        octaves = bins.reshape(-1, 1 << BIN_BITS).sum(1)
        octaves = octaves[: int(np.flatnonzero(octaves).max(initial=-1)) + 1]
        seen = np.concatenate(([zeros], zeros + bins.cumsum()))
        wanted = (math.ceil(share * finite) for share in (0.5, 0.99, 0.999))
        return (zeros, *map(int, octaves)), [_lower_edge(int(np.searchsorted(seen, w))) for w in wanted]

    def _dims(self) -> tuple[DimErrors, ...]:
        dims = [dim for dim, size in enumerate(self._shape) if size > 1]
        parts = torch.from_numpy(self._moments.slots).split([self._shape[dim] for dim in dims] or [1], dim=1)
        return tuple(
            DimErrors(dim=dim, squared_error=part[0], squared_norm=part[1])
            for dim, part in zip(dims, parts, strict=False)
        )


class _ExactMeter:
    """Compares integers, booleans and codes, for which a distance has no meaning."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._offset = self._mismatched = 0
        self._worst: tuple[int, int, int] | None = None

    def add(self, ref: Tensor, cand: Tensor) -> None:
        """Add a block."""
        differing = (ref != cand).nonzero()
        self._mismatched += len(differing)
        if len(differing) and self._worst is None:
            here = int(differing[0])
            self._worst = self._offset + here, int(ref[here]), int(cand[here])
        self._offset += ref.numel()

    def result(self) -> Metrics:
        """Return the counts of all that was added."""
        at = self._worst
        return Metrics(
            elements=self._offset,
            compared=self._offset,
            mismatched=self._mismatched,
            worst_index=None if at is None else _unravel(at[0], self._shape),
            worst_reference=None if at is None else at[1],
            worst_candidate=None if at is None else at[2],
        )


def _meter(ref: torch.dtype, cand: torch.dtype, shape: tuple[int, ...]) -> _FloatMeter | _ExactMeter:
    ours, theirs = _format(ref), _format(cand)
    if ref.is_complex == cand.is_complex:
        if ours is not None and theirs is not None:
            return _FloatMeter(ours, theirs, shape)
        if ref == cand or {ref, cand} <= _INTEGERS:
            return _ExactMeter(shape)
    raise ComparisonError(
        f"ref is {ref} and cand is {cand}: numbers of different kinds have no distance. "
        "Dequantise codes with their scales, and convert integers, before they are compared with numbers"
    )


def _format(dtype: torch.dtype) -> Format | None:
    """Return the format of numbers, or of the parts of complex ones; None for integers and codes."""
    return FORMATS.get(str(dtype.to_real() if dtype.is_complex else dtype).removeprefix("torch."))


def _plain(block: Tensor) -> Tensor:
    """Return a block as real numbers or as integers: complex numbers by their parts, codes by their bits."""
    if block.is_complex():
        return torch.view_as_real(block).reshape(-1)
    is_plain = block.dtype in _INTEGERS or _format(block.dtype) is not None
    return block if is_plain else block.view(_BITS[block.dtype.itemsize])


def _blocks(values: Tensor) -> Iterator[Tensor]:
    yield values.detach().cpu().contiguous().reshape(-1)


def _side_by_side(
    ref: Iterator[Tensor], cand: Iterator[Tensor], elements: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut both sides alike, at multiples of `TILE`, and read both to their ends."""
    left, right = next(ref), next(cand)
    seen = 0
    while True:
        left, right = _filled(left, ref), _filled(right, cand)
        n = min(left.numel(), right.numel())
        n -= n % TILE if n > TILE else 0
        if n == 0:
            break
        yield left[:n], right[:n]
        left, right, seen = left[n:], right[n:], seen + n
    if left.numel() or right.numel() or seen != elements:
        raise ComparisonError(
            f"at least {seen + left.numel()} elements of ref and {seen + right.numel()} of cand were given "
            f"for tensors of {elements}: give the blocks of whole tensors of one shape"
        )


def _read_ahead(blocks: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the blocks, each read by a thread of its own while the one before is measured."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        following = reader.submit(next, blocks, None)
        while (block := following.result()) is not None:
            following = reader.submit(next, blocks, None)
            yield block


def _filled(block: Tensor, more: Iterator[Tensor]) -> Tensor:
    while block.numel() < TILE and (following := next(more, None)) is not None:
        block = torch.cat([block, following]) if block.numel() else following
    return block


def _values(values: Tensor) -> np.ndarray:
    wide = values if values.dtype == torch.float64 else values.to(torch.float32)
    converted: np.ndarray = wide.numpy()
    return converted


def _bits(values: Tensor) -> np.ndarray:
    bits: np.ndarray = values.view(_BITS[values.dtype.itemsize]).numpy()
    return bits


def _round(values: Tensor, fmt: Format) -> Tensor:
    if values.dtype == fmt.dtype or fmt.dtype is None:
        return values
    if values.dtype == torch.float32 and fmt.bits == 16:
        return values.to(fmt.dtype)  # one rounding, to nearest even
    return round_nearest(values.double(), fmt).to(fmt.dtype)


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(at, shape)) if shape else ()


def _lower_edge(number: int) -> int:
    """Return the fewest steps that are counted in bin `number - 1`; 0 for 0."""
    if number == 0:
        return 0
    bits = (number - 1 + (1023 << BIN_BITS)) << (52 - BIN_BITS)
    return math.ceil(np.int64(bits).view(np.float64))


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.inf


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf if signal else math.nan
    return 20 * math.log10(signal / noise) if signal else -math.inf
