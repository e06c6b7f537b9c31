"""The metadata of both sides next to one another, a row for each thing that is known of either."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validator.checks.findings import Outcome
from validator.report import facts
from validator.report.json_report import plain

__all__ = ["Fact", "facts_of"]

ABSENT = "-"
"""What stands for something that one side does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that is known of the run, such as `software.torch`."""

    name: str
    reference: str
    candidate: str

    @property
    def differs(self) -> bool:
        """Whether the two sides differ in it."""
        return self.reference != self.candidate


def facts_of(outcome: Outcome) -> list[Fact]:
    """Return what is known of both sides, in the order in which the reference tells it."""
    reference, candidate = (
        dict(_flat(plain(facts.side(outcome, side)))) for side in ("reference", "candidate")
    )
    return [
        Fact(name=name, reference=reference.get(name, ABSENT), candidate=candidate.get(name, ABSENT))
        for name in dict.fromkeys((*reference, *candidate))
    ]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested metadata by their dotted path; a list of plain values is one leaf."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _flat(child, f"{name}.{key}" if name else key)
    elif isinstance(value, Sequence) and not isinstance(value, str) and any(map(_is_nested, value)):
        for number, child in enumerate(value):
            yield from _flat(child, f"{name}[{number}]")
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value)) or ABSENT
    else:
        yield name, ABSENT if value is None else str(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list)
