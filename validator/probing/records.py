"""What a rank observes in a probe, and what is concluded from all ranks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Blame", "Fault", "Kind", "Observation", "Order", "OrderKind", "Status"]


class Kind(StrEnum):
    """What a case asks."""

    EXACT = "exact"
    ORDER = "order"
    OVERLAP = "overlap"
    BANDWIDTH = "bandwidth"


class Status(StrEnum):
    """What a rank found: `unsupported` is a collective that the backend refuses, with its own message."""

    OK = "ok"
    WRONG = "wrong"
    UNSUPPORTED = "unsupported"


class Fault(StrEnum):
    """What is wrong with what a rank got, from the most to the least specific."""

    NOT_WRITTEN = "not written"
    STALE = "stale"
    MISSING = "contribution missing"
    DOUBLED = "contribution doubled"
    NOT_REDUCED = "not reduced"
    SUBSET = "some ranks' contributions alone"
    TRUNCATED = "truncated"
    MOVED = "in the wrong place"
    NARROWED = "narrower format"
    SCALED = "contribution scaled"
    CORRUPT = "corrupt"
    RACE = "race"
    NONDETERMINISTIC = "not deterministic"
    DISAGREE = "ranks disagree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What one rank got wrong in one call.

    Attributes:
        fault: what kind it is.
        source: the rank whose contribution or message is affected, or None where that can't be told.
        turn: number of the call, from 0.
        first, last: range of the affected elements in what the rank received.
        count: how many elements are affected, of `size`.
        right, got: value of the first of them.
        detail: the rest of the story, or "".
    """

    fault: Fault
    source: int | None = None
    turn: int = 0
    first: int
    last: int
    count: int
    size: int
    right: float
    got: float
    detail: str = ""


class OrderKind(StrEnum):
    """How a reduction's order is described."""

    FOLD = "fold"
    RING = "ring"
    TREE = "tree"
    HIDDEN = "hidden"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order in which contributions are added.

    Attributes:
        kind: `fold` adds one rank after the other, `ring` does so from another rank for each chunk, `tree` is
            any other; `hidden` is one that the rounded sum doesn't show, `unknown` none that was tried.
        start, step: of a fold: its first rank, and +1 or -1 to the next.
        text: for people, such as `"((0 + 1) + 2)"`.
    """

    kind: OrderKind
    start: int | None = None
    step: int | None = None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one rank observed in one case with one dtype and size.

    Attributes:
        case: the case's name.
        call: the collective, with its reduction, such as `"all_reduce sum"`.
        size: elements that the rank receives.
        message: of the backend where it refused.
        promised: whether torch promises that the call works; what breaks otherwise is a hazard.
        blames: what is wrong, one for each call and source.
        checksums: of what the rank got in each repeat, where repeats should be the same.
        replicated: whether every rank should have the same bits.
        order, formats: of a reduction: its order, and the formats in which it may be adding.
        figures: of a bandwidth case: seconds by message size in bytes.
    """

    rank: int
    case: str
    kind: Kind
    call: str
    dtype: str
    size: int
    status: Status
    message: str = ""
    promised: bool = True
    blames: tuple[Blame, ...] = ()
    checksums: tuple[str, ...] = ()
    replicated: bool = False
    order: Order | None = None
    formats: tuple[str, ...] = ()
    figures: Mapping[int, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Observation":
        """Undo `to_json`, after a way through JSON."""
        order = fields["order"]
        made: dict[str, Any] = fields | {
            "kind": Kind(fields["kind"]),
            "status": Status(fields["status"]),
            "blames": tuple(Blame(**blame | {"fault": Fault(blame["fault"])}) for blame in fields["blames"]),
            "checksums": tuple(fields["checksums"]),
            "order": None if order is None else Order(**order | {"kind": OrderKind(order["kind"])}),
            "formats": tuple(fields["formats"]),
            "figures": {int(size): seconds for size, seconds in fields["figures"].items()},
        }
        return cls(**made)
