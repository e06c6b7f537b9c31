"""Stacks of layers: modules that differ by a number in their name and work one on the other's result."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validator.capturing.records import Call, RankCapture, TensorRef

__all__ = ["Stack", "find_stacks", "float_checksums", "split_number"]

_NUMBERED = re.compile(r"(.*)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers of the reference.

    Attributes:
        prefix: their name without its number.
        layers: the first call of each, in order, of layer 0 first.
    """

    prefix: str
    layers: tuple[Call, ...]


def find_stacks(ref: RankCapture) -> list[Stack]:
    """Return the stacks of a reference.

    A stack's layers are numbered from 0, called in that order, and at least one of them is given, bit by bit,
    what the one before it returned. Experts are numbered as well, but none works on another's result.
    """
    groups: dict[str, dict[int, Call]] = {}
    for call in sorted(ref.calls, key=lambda call: call.start):
        if (split := split_number(call.module)) is not None:
            groups.setdefault(split[0], {}).setdefault(split[1], call)
    stacks = []
    for prefix, calls in groups.items():
        layers = tuple(calls.values())
        is_chain = any(map(_feeds, layers, layers[1:]))
        if is_chain and list(calls) == list(range(len(calls))):
            stacks.append(Stack(prefix=prefix, layers=layers))
    return stacks


def split_number(name: str) -> tuple[str, int] | None:
    """Return a module's name without the number that it ends in, and the number; None if it ends in none."""
    match = _NUMBERED.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def float_checksums(values: Mapping[str, Any]) -> set[str]:
    """Return the checksums of the floating tensors that are not empty."""
    tensors = [value.meta for value in values.values() if isinstance(value, TensorRef)]
    return {meta.checksum for meta in tensors if 0 not in meta.shape and "float" in meta.dtype}


def _feeds(call: Call, following: Call) -> bool:
    is_beside = call.parent == following.parent
    return is_beside and not float_checksums(call.outputs).isdisjoint(float_checksums(following.inputs))
