"""What a judged edge, and the model's output, look like: records small enough to keep of every edge."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
        axis: the dim's meaning (`"token"`, `"channel"`, ...), `"dim 2"` where it has none, or `"rank"`.
        dim: which dim; None for ranks.
        size: of the dim, or number of ranks.
        starts: the first index of each bin, or the ranks.
        largest, rms: of the error in each bin; NaN where nothing is judged, inf where a value is of another
            class than the oracle's (NaN for a number, ...).
    """

    axis: str
    dim: int | None
    size: int
    starts: tuple[int, ...]
    largest: tuple[float, ...]
    rms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Elements drawn at random, and after them the worst ones: their values and errors."""

    oracle: tuple[float, ...]
    candidate: tuple[float, ...]
    error: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Values around the worst element, rows and columns of the last two dims.

    Attributes:
        start: index of the first of them.
        worst: index of the worst.
        oracle, candidate: their values, row by row.
        allowed: how far apart the two may be; inf where nothing is judged, NaN where rounding decides a
            value altogether.
    """

    start: tuple[int, ...]
    worst: tuple[int, ...]
    oracle: tuple[tuple[float, ...], ...]
    candidate: tuple[tuple[float, ...], ...]
    allowed: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What an edge looks like.

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
    ulp_counts: tuple[int, ...]
    sample: Sample
    window: Window | None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Profile":
        """Make a profile of what `dataclasses.asdict` returned, once it has been JSON."""
        window = fields["window"]
        return cls(
            unit=Unit(fields["unit"]),
            largest=fields["largest"],
            rms=fields["rms"],
            lines=tuple(Line(**_tuples(line)) for line in fields["lines"]),
            ulp_counts=tuple(fields["ulp_counts"]),
            sample=Sample(**_tuples(fields["sample"])),
            window=None if window is None else Window(**_tuples(window)),
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


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make tuples of lists, and of lists in lists."""

    def made(value: Any) -> Any:
        return tuple(made(item) for item in value) if isinstance(value, list) else value

    return {name: made(value) for name, value in fields.items()}
