"""What differs between the conditions of two runs: machine, versions, ranks, inputs, flags, settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Difference", "differences", "is_another_machine"]

_ITEMS = ("hardware", "software", "parallelism", "inputs", "seeds", "determinism", "settings")
# That the host has another name, or a rank another number, makes no other machine.
_NO_HARDWARE = ("host", "rank", "uuid", "pci", "index")
_INPUTS = ("checksum", "shape", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that was otherwise.

    Attributes:
        item: `"hardware"`, `"software"`, `"parallelism"`, `"inputs"`, `"seeds"`,
            `"determinism"` or `"settings"`.
        name: which part of it, such as `"torch"`.
        then: as the baseline has it.
        now: as the run has it.
    """

    item: str
    name: str
    then: Any
    now: Any

    def __str__(self) -> str:
        """Return `software torch 2.12.0, now 2.13.0`."""
        return f"{self.item} {self.name} {_shown(self.then)}, now {_shown(self.now)}"


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return what differs, item by item.

    Args:
        then: the metadata of a recorded run, as a capture's manifest has it.
        now: those of another.
    """
    return tuple(
        Difference(item=item, name=name, then=before.get(name), now=after.get(name))
        for item in _ITEMS
        for before, after in [(dict(_parts(item, then.get(item))), dict(_parts(item, now.get(item))))]
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    )


def is_another_machine(found: tuple[Difference, ...]) -> bool:
    """Tell whether the two ran on different machines, whose speed and memory say nothing of each other."""
    return any(difference.item == "hardware" for difference in found)


def _parts(item: str, value: Any) -> Iterator[tuple[str, Any]]:
    if item == "hardware":
        kinds = {str(sorted(_machine(one).items())): _machine(one) for one in value or ()}
        for number, (_, kind) in enumerate(sorted(kinds.items())):
            for name, part in kind.items():
                yield (name if len(kinds) == 1 else f"{name} of machine {number}"), part
    elif item == "inputs":
        for name, described in (value or {}).items():
            yield name, {key: described.get(key) for key in _INPUTS}
    else:
        yield from (value or {}).items()


def _machine(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank ran on, but for what tells one specimen from another."""
    plain = {name: value for name, value in rank.items() if name not in (*_NO_HARDWARE, "devices")}
    devices = [
        {name: value for name, value in device.items() if name not in _NO_HARDWARE}
        for device in rank.get("devices", ())
    ]
    return {**plain, "devices": devices}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {part}" for name, part in value.items()) or "none"
    return "none" if value is None else str(value)
