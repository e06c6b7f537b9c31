"""What a judged edge, and the model's output, look like: records small enough to keep of every edge.

Numbers are packed into arrays, 8 bytes each, that compare and are read like tuples, but have no hash.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from validator.align.dims import MEANINGS

__all__ = ["ULP_EDGES", "Line", "OutputProfile", "Position", "Profile", "Sample", "Unit", "Window"]


_STEPS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0)
ULP_EDGES = (*(-step for step in reversed(_STEPS)), 0.0, *_STEPS)
"""Where the bins of the histogram of errors meet, in ulp; the first and the last bin are open.

An error of 0 has a bin of its own, in the middle; one where two bins meet is in the bin farther from 0.
Storing an exact result makes errors of up to 1/2, which the narrow bins resolve.
"""


class Unit(StrEnum):
    """What errors of an edge are measured in."""

    BAND = "band"
    """`|d|` over what the band allows there: more than 1 is outside."""

    ULP = "ulp"
    """Where nothing is computed, any difference is one too many: `|d|` in ulp of the candidate's format."""

    DIFFERENCE = "difference"
    """`|d|` between integers or booleans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The error along one dim of an edge, or over the ranks that hold it.

    Attributes:
        axis: the dim's meaning (`"token"`, `"channel"`, ...), `"dim 2"` where it has none, or `"rank"`. A dim
            may have two: channels are those of heads, and tokens of several sequences follow each other.
        dim: which dim; None for ranks.
        size: places along the axis, or number of ranks.
        starts: the first index of each bin, or the ranks.
        largest, rms: of the error in each bin; NaN where nothing is judged, inf where a value is of another
            class than the oracle's (NaN for a number, ...).
        counts: how many elements are judged in each bin.
    """

    axis: str
    dim: int | None
    size: int
    starts: Sequence[int]
    largest: Sequence[float]
    rms: Sequence[float]
    counts: Sequence[int]

    def __post_init__(self) -> None:
        """Pack the numbers.

        Raises:
            ValueError: it is no axis, or no bins of it, or one lacks a figure.
        """
        known = {"rank"} if self.dim is None else {*MEANINGS, f"dim {self.dim:d}"}
        if self.axis not in known:
            raise ValueError(f"{self.axis!r} is no axis; those are {', '.join(sorted(known))}")
        _pack(self, "q", "starts", "counts")
        _pack(self, "d", "largest", "rms")
        _require_alike(self.starts, self.largest, self.rms, self.counts)
        if not 0 < len(self.starts) <= self.size:
            raise ValueError(f"{len(self.starts)} bins for {self.size} places along {self.axis}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Elements drawn at random, and after them the worst ones: their values and errors."""

    oracle: Sequence[float]
    candidate: Sequence[float]
    error: Sequence[float]

    def __post_init__(self) -> None:
        """Pack the numbers.

        Raises:
            ValueError: an element lacks one.
        """
        _pack(self, "d", "oracle", "candidate", "error")
        _require_alike(self.oracle, self.candidate, self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Values around the worst element, rows and columns of the last two dims.

    Attributes:
        start: index of the first of them.
        worst: index of the worst.
        oracle, candidate: their values, row by row.
        allowed: how far apart the two may be, as `EdgeValues.allowed` defines it.
    """

    start: tuple[int, ...]
    worst: tuple[int, ...]
    oracle: Sequence[Sequence[float]]
    candidate: Sequence[Sequence[float]]
    allowed: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        """Pack the numbers, row by row.

        Raises:
            ValueError: an element lacks one.
        """
        for name in ("start", "worst"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("oracle", "candidate", "allowed"):
            object.__setattr__(self, name, tuple(array("d", row) for row in getattr(self, name)))
        _require_alike(self.oracle, self.candidate, self.allowed)
        for rows in zip(self.oracle, self.candidate, self.allowed, strict=True):
            _require_alike(*rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What an edge looks like.

    That of an edge `[2, 512, 4096]` on four ranks takes 33 kB, and that of a larger one no more: 60 layers of
    30 edges take 60 MB. In tuples of Python's own numbers it was 96 kB (both measured by `tracemalloc`).

    Attributes:
        unit: of the errors.
        largest, rms: error of all elements that are judged.
        lines: the error along each dim of more than one place, and over the ranks where they hold different
            parts.
        ulp_counts: elements by signed error, in the bins of `ULP_EDGES`; none for integers. Elements of
            another class than the oracle's are in no bin.
        sample: single elements.
        window: values around the worst element; None where the edge has no element that is judged.
    """

    unit: Unit
    largest: float
    rms: float
    lines: tuple[Line, ...]
    ulp_counts: Sequence[int]
    sample: Sample
    window: Window | None

    def __post_init__(self) -> None:
        """Pack the numbers.

        Raises:
            ValueError: two lines are along one axis, or the histogram has other bins.
        """
        _pack(self, "q", "ulp_counts")
        if len(self.ulp_counts) not in (0, len(ULP_EDGES) + 2):
            raise ValueError(f"a histogram of {len(self.ulp_counts)} bins, not of {len(ULP_EDGES) + 2}")
        twice = [axis for axis, n in Counter(line.axis for line in self.lines).items() if n > 1]
        if twice:
            raise ValueError(f"there are several lines along {', '.join(twice)}")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Profile":
        """Make a profile of what `dataclasses.asdict` returned, once it has been JSON, arrays as lists.

        Raises:
            LookupError, TypeError or ValueError: it is no such thing.
        """
        window = fields["window"]
        return cls(
            unit=Unit(fields["unit"]),
            largest=float(fields["largest"]),
            rms=float(fields["rms"]),
            lines=tuple(Line(**line) for line in fields["lines"]),
            ulp_counts=fields["ulp_counts"],
            sample=Sample(**fields["sample"]),
            window=None if window is None else Window(**window),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The tokens that both sides prefer at one position.

    Attributes:
        place: sequence and token.
        kl: KL(p || q) in nats, p of the reference and q of the candidate; inf where the candidate has no
            distribution.
        reference, candidate: `(token, probability)` of each side's likeliest tokens, likeliest first.
    """

    place: tuple[int, int]
    kl: float
    reference: tuple[tuple[int, float], ...]
    candidate: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputProfile:
    """The candidate's next-token distributions against the reference's, position by position.

    Attributes:
        places: sequence and token of each position that was compared.
        kl: KL(p || q) at each of them, in nats.
        worst: the positions with the greatest KL, greatest first.
    """

    places: tuple[tuple[int, int], ...]
    kl: tuple[float, ...]
    worst: tuple[Position, ...]


def _pack(record: Line | Sample | Profile, kind: str, *names: str) -> None:
    """Put the numbers of a record into arrays."""
    for name in names:
        object.__setattr__(record, name, array(kind, getattr(record, name)))


def _require_alike(*columns: Sequence[Any]) -> None:
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ValueError(f"columns of {lengths} numbers are of the same places")
