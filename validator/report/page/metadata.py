"""The metadata of both sides next to one another, a row for each thing that is known of either."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from validator.checks.findings import Outcome
from validator.report import facts
from validator.report.json_report import plain
from validator.report.orders import merged

__all__ = ["Fact", "facts_of"]

ABSENT = "-"
"""What stands for something that one side does not tell."""


@dataclass(frozen=True, slots=True)
class _Several:
    """What several, such as ranks, have each, not all of them the same."""

    values: tuple["_Told", ...]


_Told = str | tuple[str, ...] | _Several


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that is known of the run, such as `software.torch`.

    Attributes:
        differs: whether the two sides differ in it, told from the values and not from their texts.
    """

    name: str
    reference: str
    candidate: str
    differs: bool


def facts_of(outcome: Outcome) -> list[Fact]:
    """Return what is known of both sides, in the order in which the reference tells it.

    A list that is empty on one side, such as of meshes, has no row beside those of what is in the other's.
    """
    reference, candidate = (
        dict(_flat(plain(facts.side(outcome, side)))) for side in ("reference", "candidate")
    )
    names = merged((reference, candidate))
    told = ((name, reference.get(name, ABSENT), candidate.get(name, ABSENT)) for name in names)
    return [
        _fact(name, *values)
        for name, *values in told
        if values != [ABSENT, ABSENT] or not any(other.startswith(f"{name}.") for other in names)
    ]


def _fact(name: str, reference: _Told, candidate: _Told) -> Fact:
    return Fact(
        name=name, reference=_text(reference), candidate=_text(candidate), differs=reference != candidate
    )


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, _Told]]:
    """Yield the path and the value of everything in nested mappings and lists.

    Of what is told of each of several, such as hosts or ranks, each path has the values one after the other;
    what all have in common is told once, as of many ranks it would be all that is seen.
    """
    each = _of_each(value)
    if each is not None:
        found = [dict(_flat(child, name)) for child in each]
        for path in dict.fromkeys(path for child in found for path in child):
            values = tuple(child.get(path, ABSENT) for child in found)
            yield path, values[0] if len(set(values)) == 1 else _Several(values)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _flat(child, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        yield name, tuple(map(str, value)) or ABSENT
    else:
        yield name, ABSENT if value is None else str(value)


def _of_each(value: Any) -> Collection[Any] | None:
    """Return what a value holds of each of several, or None of one thing."""
    if isinstance(value, Mapping):
        return value.values() if value and all(str(key).isdecimal() for key in value) else None
    is_nested = isinstance(value, list) and any(isinstance(child, Mapping | list) for child in value)
    return value if is_nested else None


def _text(told: _Told) -> str:
    """Return values one after the other, a run of the same once; a list among others keeps its brackets."""
    if isinstance(told, str):
        return told
    if isinstance(told, tuple):
        return ", ".join(told)
    texts = (value if isinstance(value, str) else f"[{_text(value)}]" for value in told.values)
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return ", ".join(text if n == 1 else f"{text} ({n} times)" for text, n in runs)
