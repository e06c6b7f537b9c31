"""The metadata of both sides next to one another, a row for each thing that is known of either."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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
    """Yield the leaves of nested metadata by their dotted path; a list of plain values is one leaf.

    What there is of each rank, a list or a mapping by its number, is told in one leaf as well: of many ranks
    it would be all that is seen.
    """
    each = _of_each(value)
    if each is not None:
        found: dict[str, list[str]] = {}
        for child in each:
            for path, text in _flat(child, name):
                found.setdefault(path, []).append(text)
        for path, texts in found.items():
            yield path, _told_once(texts)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _flat(child, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value)) or ABSENT
    else:
        yield name, ABSENT if value is None else str(value)


def _of_each(value: Any) -> Collection[Any] | None:
    """Return what a value holds of each of several, or None of one thing."""
    if isinstance(value, Mapping):
        return value.values() if value and all(str(key).isdecimal() for key in value) else None
    is_nested = isinstance(value, list) and any(isinstance(child, Mapping | list) for child in value)
    return value if is_nested else None


def _told_once(texts: Sequence[str]) -> str:
    """Return texts one after the other, a run of the same once; alone where all are the same."""
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    if len(runs) == 1:
        return runs[0][0]
    return ", ".join(text if n == 1 else f"{text} ({n} times)" for text, n in runs)
