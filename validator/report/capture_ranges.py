"""How large each tensor of a capture is: statistics, NaN and infinities, and how near its format's limits.

What the statistics beside the values say is taken from them; `capture_values` reads what they leave open.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture, Statistics, TensorRef
from validator.numerics.formats import FORMATS, Format
from validator.report.capture_values import first_index, has_mask_infinities, shares

__all__ = ["CaptureRanges", "Place", "TensorRange", "ranges_of"]

_PARAMETERS = -1
"""The order of parameters: before the first event of a run."""

_Name = tuple[int, str, str, str]

_SCALED_BITS = 8
"""Formats of so many bits are used with scales that put the largest element at the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something is first.

    Attributes:
        order: position in the rank's sequence of events; parameters come before all of them.
        side: `"input"`, `"output"`, `"parameter"`, or `"entered"` or `"left"` of a collective.
        path: in the inputs or outputs; the name of a parameter; the kind and number of a collective.
        index: of the element, or None where only statistics or a sample were kept.
    """

    order: int
    rank: int
    module: str
    call: int
    side: str
    path: str
    index: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRange:
    """One tensor of a rank, all its calls together.

    Attributes:
        side: `"input"`, `"output"`, `"parameter"`, or `"entered"` or `"left"` of a collective.
        path: in the inputs or outputs; the name of a parameter; the kind and number of a collective.
        dtype: the torch name without `torch.`, of the first call like `shape`.
        elements: of all calls.
        statistics: over the finite elements of all calls.
        is_mask: whether it has negative infinities alone, as masks do.
        zeros: share of the elements that are 0, or None where that is not known.
        subnormals: share of those that are not 0 and below the smallest normal value, or None likewise.
    """

    rank: int
    module: str
    side: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    calls: int
    elements: int
    statistics: Statistics
    is_mask: bool = False
    zeros: float | None = None
    subnormals: float | None = None

    @property
    def format(self) -> Format | None:
        """The floating format, or None of integers."""
        return FORMATS.get(self.dtype)

    @property
    def headroom_bits(self) -> float | None:
        """How often the largest element can be doubled before it overflows; None of zeros and integers.

        A smallest element that is the format's own is how masks are written, and not counted.
        """
        if self.format is None:
            return None
        numbers, limit = self.statistics, self.format.max
        largest = max((abs(x) for x in (numbers.min, numbers.max) if x != -limit), default=0.0)
        return math.log2(limit / largest) if largest > 0 else None

    @property
    def is_near_overflow(self) -> bool:
        """Whether adding two such elements may overflow; never so of formats that are used with scales."""
        bits = self.headroom_bits
        return bits is not None and bits < 1 and self.format is not None and self.format.bits > _SCALED_BITS

    @property
    def is_near_underflow(self) -> bool:
        """Whether its root mean square is below the smallest normal value, and not 0."""
        return self.format is not None and 0 < self.statistics.rms < self.format.min_normal


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRanges:
    """All tensors of a capture in the order in which they were first seen, parameters first.

    Attributes:
        first_nan: the first in that order, or None where there is none.
        first_inf: the first infinity that is not a mask's.
        unmeasured: modules with tensors that have no statistics: complex numbers, codes, and parameters of
            which only hashes were kept.
    """

    capture: Capture
    tensors: tuple[TensorRange, ...]
    first_nan: Place | None = None
    first_inf: Place | None = None
    unmeasured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A tensor with statistics, and where it was seen."""

    place: Place
    ref: TensorRef
    statistics: Statistics


def ranges_of(capture: Capture, *, counts: bool = False) -> CaptureRanges:
    """Describe every tensor of a capture.

    Args:
        capture: complete or not.
        counts: read every floating tensor, to count zeros and subnormal elements wherever statistics don't
            tell how many there are.

    Raises:
        CaptureError: the capture is damaged.
    """
    seen: list[_Seen] = []
    unmeasured: dict[str, None] = {}
    for rank in map(capture.rank, capture.ranks):
        for place, ref in _tensors(rank):
            if ref.meta.statistics is None:
                unmeasured[place.module] = None
            else:
                seen.append(_Seen(place=place, ref=ref, statistics=ref.meta.statistics))
    # What left a collective comes after what entered it on any rank.
    seen.sort(key=lambda one: (one.place.order, one.place.side == "left", one.place.rank))
    tensors: dict[_Name, list[_Seen]] = {}
    for one in seen:
        tensors.setdefault(_name(one.place), []).append(one)
    masks, infinite = _told_apart(one for one in seen if one.statistics.inf)
    masked = {_name(one.place) for one in masks} - {_name(one.place) for one in infinite}
    return CaptureRanges(
        capture=capture,
        tensors=tuple(
            replace(_merged(calls, counts=counts), is_mask=name in masked) for name, calls in tensors.items()
        ),
        first_nan=_first((one for one in seen if one.statistics.nan), torch.isnan),
        first_inf=_first(infinite, torch.isinf),
        unmeasured=tuple(unmeasured),
    )


def _name(place: Place) -> _Name:
    return place.rank, place.module, place.side, place.path


def _tensors(rank: RankCapture) -> Iterator[tuple[Place, TensorRef]]:
    """Yield every tensor of a rank, and where it was seen."""

    def place(order: int, module: str, call: int, side: str, path: str) -> Place:
        return Place(order=order, rank=rank.rank, module=module, call=call, side=side, path=path)

    for name, parameter in rank.parameters.items():
        yield place(_PARAMETERS, name.rpartition(".")[0], 0, "parameter", name), parameter.ref
    for call in rank.calls:
        end = call.start if call.end is None else call.end
        for order, side, values in ((call.start, "input", call.inputs), (end, "output", call.outputs)):
            for path, value in values.items():
                if isinstance(value, TensorRef):
                    yield place(order, call.module, call.n, side, path), value
    for collective in rank.collectives:
        owner = None if collective.call is None else rank.calls[collective.call]
        module, n = ("", 0) if owner is None else (owner.module, owner.n)
        for side, refs in (("entered", collective.entered), ("left", collective.left)):
            for i, ref in enumerate(refs):
                yield place(collective.start, module, n, side, f"{collective.op} {i}"), ref


def _merged(calls: Sequence[_Seen], *, counts: bool) -> TensorRange:
    first = calls[0]
    elements = [math.prod(one.ref.meta.shape) for one in calls]
    merged = TensorRange(
        rank=first.place.rank,
        module=first.place.module,
        side=first.place.side,
        path=first.place.path,
        dtype=first.ref.meta.dtype,
        shape=first.ref.meta.shape,
        calls=len(calls),
        elements=sum(elements),
        statistics=_total([one.statistics for one in calls], elements),
    )
    if merged.format is None:
        return merged
    read = [one.ref for one in calls] if counts or merged.is_near_underflow else []
    zeros, subnormals = shares(merged.statistics, merged.format, read)
    return replace(merged, zeros=zeros, subnormals=subnormals)


def _total(parts: Sequence[Statistics], elements: Sequence[int]) -> Statistics:
    """Return the statistics of several tensors together; each mean counts as much as its finite elements."""
    nan, inf = sum(part.nan for part in parts), sum(part.inf for part in parts)
    finite = [
        (part, n - part.nan - part.inf)
        for part, n in zip(parts, elements, strict=True)
        if not math.isnan(part.rms)
    ]
    count = sum(n for _, n in finite)
    if count == 0:
        return replace(parts[0], nan=nan, inf=inf)
    return Statistics(
        min=min(part.min for part, _ in finite),
        max=max(part.max for part, _ in finite),
        mean=math.fsum(part.mean * (n / count) for part, n in finite),
        rms=math.hypot(*(part.rms * math.sqrt(n / count) for part, n in finite)),
        nan=nan,
        inf=inf,
    )


def _told_apart(infinite: Iterable[_Seen]) -> tuple[list[_Seen], list[_Seen]]:
    """Return the masks among tensors with infinities, and the others; equal bits are read once."""
    known: dict[str, bool] = {}
    masks: list[_Seen] = []
    others: list[_Seen] = []
    for one in infinite:
        bits = one.ref.meta.checksum
        if bits not in known:
            known[bits] = has_mask_infinities(one.ref, one.statistics)
        (masks if known[bits] else others).append(one)
    return masks, others


def _first(found: Iterable[_Seen], test: Callable[[torch.Tensor], torch.Tensor]) -> Place | None:
    one = next(iter(found), None)
    return None if one is None else replace(one.place, index=first_index(one.ref, test))
