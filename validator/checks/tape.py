"""The operations of one piece of code in their order, to be run again under other rounding.

The code itself runs once. A replay runs the operations that it came to, on the same given values, in other
arithmetic: without the code's Python, and always along the same path. Where a replay would have gone
another way (a number that the code read from a rounded value has changed) it is given up.
"""

import copy
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from validator.checks.operations import Operation, Value, view_of_storage
from validator.checks.roundings import Rounding
from validator.checks.shadow import ShadowTensor

__all__ = ["Diverted", "Tape"]

_numbers = itertools.count()


class Diverted(Exception):  # noqa: N818 - it is caught by us, and no error
    """A replay would have taken another path through the code than the float64 run."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    """An operation with where its values come from and go to.

    Attributes:
        operation: what to run.
        sources: slots of its inputs.
        targets: slots of its results, None for what nothing depends on.
        alike: for each tensor that it writes to, the slots that share its memory.
        expected: what decides the path: numbers among the results, and the shapes of the others.
        pinned: runs in place of `operation` where choices that no edge shows are pinned.
    """

    operation: Operation
    sources: tuple[int, ...]
    targets: tuple[int | None, ...]
    alike: tuple[tuple[int, ...], ...] = ()
    expected: tuple[Any, ...] = ()
    pinned: Operation | None = None
    freed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """Where the value of a slot at this moment is wanted."""

    key: Any
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Return:
    """Where a module whose code is part of this code returned the value of a slot."""

    module: str
    slot: int


@dataclass(slots=True)
class Tape:
    """Records operations on shadows, and plays them on plain values.

    Attributes:
        pins: whether a replay makes all choices as the recorded run did, those that no edge shows included.
    """

    pins: bool = False
    _number: int = field(default_factory=lambda: next(_numbers))
    _entries: list[_Entry | _Mark | _Return] = field(default_factory=list)
    _given: dict[int, Value] = field(default_factory=dict)
    _saved: dict[int, tuple[torch.UntypedStorage, int]] = field(default_factory=dict)
    _versions: dict[int, int] = field(default_factory=dict)
    _plain: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    _count: int = 0
    _has_writes: bool = False
    _is_sealed: bool = False

    def record(
        self,
        operation: Operation,
        inputs: Sequence[Any],
        results: Sequence[Any],
        pinned: Operation | None = None,
    ) -> None:
        """Keep an operation that was run.

        Args:
            operation: what was run.
            inputs: shadows, and integers and booleans that rounded values decided.
            results: shadows, other tensors and numbers.
            pinned: what to run in its place where choices are pinned.
        """
        sources = tuple([self._slot(x) for x in inputs])
        targets = tuple([self._new_slot(x) if isinstance(x, Tensor) else None for x in results])
        expected = tuple([x.shape if isinstance(x, Tensor) else x for x in results])
        self._entries.append(
            _Entry(operation=operation, sources=sources, targets=targets, expected=expected, pinned=pinned)
        )

    def before_write(self, written: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
        """Save what an operation is about to change, and return the slots that share memory with each."""
        alike = tuple([tuple([self._slot(y) for y in _aliases(x)]) for x in written])
        self._has_writes = True
        storages = {
            self._given[slot].data64.untyped_storage().data_ptr()
            for group in alike
            for slot in group
            if slot in self._given
        }
        saved: dict[int, torch.UntypedStorage] = {}
        for slot, value in self._given.items():
            storage = value.data64.untyped_storage()
            pointer = storage.data_ptr()
            if pointer in storages and slot not in self._saved:
                if pointer not in saved:
                    saved[pointer] = storage.clone()
                self._saved[slot] = saved[pointer], pointer
        return alike

    def record_write(
        self, operation: Operation, inputs: Sequence[Any], alike: tuple[tuple[int, ...], ...]
    ) -> None:
        """Keep an operation that changed some of its inputs in place, after `before_write`."""
        sources = tuple([self._slot(x) for x in inputs])
        self._entries.append(_Entry(operation=operation, sources=sources, targets=(), alike=alike))

    def mark(self, key: Any, value: Any) -> None:
        """Ask for the value that a tensor has at this moment."""
        self._entries.append(_Mark(key=key, slot=self._slot(value)))

    def returned(self, module: str, value: ShadowTensor) -> None:
        """Keep that a module whose code is part of this code returned a value at this moment."""
        self._entries.append(_Return(module=module, slot=self._slot(value)))

    def follow(self, plain: Tensor, shadow: ShadowTensor) -> None:
        """Take a plain tensor for a shadow from here on: the code changed it in place."""
        self._plain[id(plain)] = plain, self._slot(shadow)

    def adopt(self, plain: Tensor, shadow: ShadowTensor) -> None:
        """Let a shadow that was made from a plain tensor stand for what the code made of that before."""
        if id(plain) in self._plain:
            shadow.slots[self._number] = self._plain[id(plain)][1]

    @property
    def has_softmax(self) -> bool:
        """Whether an operation divides by a sum of exponentials."""
        return any(isinstance(x, _Entry) and x.operation.is_softmax for x in self._entries)

    @property
    def operations(self) -> list[tuple[Operation, tuple[int, ...], tuple[int | None, ...]]]:
        """The operations in their order, each with the slots that its values come from and go to."""
        return [(x.operation, x.sources, x.targets) for x in self._entries if isinstance(x, _Entry)]

    @property
    def given(self) -> Mapping[int, Tensor]:
        """The values that come from outside of the code, by slot, but for those that it writes to."""
        return {slot: x.data64 for slot, x in self._given.items() if slot not in self._saved}

    def behind(self, slots: Collection[int]) -> frozenset[Any]:
        """Return the keys of the marked values that depend on some slots."""
        reached, keys = set(slots), set()
        for entry in self._entries:
            if isinstance(entry, _Mark):
                keys |= {entry.key} if entry.slot in reached else set()
            elif isinstance(entry, _Entry) and reached.intersection(entry.sources):
                reached |= {slot for slot in entry.targets if slot is not None}
                reached |= {slot for group in entry.alike for slot in group}
        return frozenset(keys)

    def exchanged(self, others: Mapping[Operation, Operation]) -> "Tape":
        """Return a tape on which other operations stand in the place of some, on the same values."""
        made = copy.copy(self)
        made._entries = [
            replace(x, operation=others[x.operation])
            if isinstance(x, _Entry) and x.operation in others
            else x
            for x in self._entries
        ]
        return made

    def play(
        self,
        rounding: Rounding,
        spoilt: tuple[str, float] | None = None,
        *,
        watched: Collection[int] = (),
        replaced: Mapping[int, Tensor] | None = None,
    ) -> Mapping[Any, Value]:
        """Run all operations, and return the values that were marked.

        Args:
            rounding: what happens to their results.
            spoilt: a module whose code is part of this code, and the factor that the second half of the
                channels of all it returns is multiplied by.
            watched: slots whose values are returned as well, by slot, as they first are.
            replaced: values that slots take in place of their own.

        Raises:
            Diverted: the code would have taken another path.
        """
        if not self._is_sealed:
            self._seal()
        values = self._initial()
        changed = {slot: Value(data, data) for slot, data in (replaced or {}).items()}
        marked: dict[Any, Value] = {}
        for given in self._given:
            values[given] = changed.get(given, values[given])
            if given in watched:
                marked[given] = self._kept(values[given])
        for entry in self._entries:
            if isinstance(entry, _Mark):
                marked[entry.key] = self._kept(values[entry.slot])
                continue
            if isinstance(entry, _Return):
                if spoilt is not None and entry.module == spoilt[0] and values[entry.slot] is not None:
                    values[entry.slot] = _half_scaled(values[entry.slot], spoilt[1])
                continue
            operation = entry.pinned if self.pins and entry.pinned is not None else entry.operation
            inputs = [values[slot] for slot in entry.sources]
            alike = [[values[slot] for slot in group] for group in entry.alike]
            made = operation.run(inputs, rounding, alike)
            for slot, value, expected in zip(entry.targets, made, entry.expected, strict=False):
                _require_same_path(value.data64 if isinstance(value, Value) else value, expected)
                if not isinstance(value, Value):
                    value = Value(value, value)
                if slot is not None:
                    value = changed.get(slot, value)
                    values[slot] = value
                    if slot in watched:
                        marked[slot] = self._kept(value)
            for slot in entry.freed:
                values[slot] = None
        return marked

    def _kept(self, value: Value) -> Value:
        """Return a value that later operations don't change."""
        if not self._has_writes:
            return value
        data = value.data64.clone()
        exact = data if value.exact64 is value.data64 else value.exact64.clone()
        return Value(data, exact, value.sigma64, value.bound64)

    def _slot(self, value: Any) -> int:
        if isinstance(value, ShadowTensor):
            slot = value.slots.get(self._number)
            if slot is None:
                slot = value.slots[self._number] = self._give(Value(value.data64, value.data64))
            return slot
        if id(value) not in self._plain:
            self._plain[id(value)] = value, self._give(Value(value, value))
        return self._plain[id(value)][1]

    def _give(self, value: Value) -> int:
        """Take a value that comes from outside of the code."""
        self._count += 1
        self._given[self._count] = value
        self._versions[self._count] = value.data64._version
        return self._count

    def _new_slot(self, result: Tensor) -> int:
        self._count += 1
        if isinstance(result, ShadowTensor):
            result.slots[self._number] = self._count
        else:
            self._plain[id(result)] = result, self._count
        return self._count

    def _initial(self) -> list[Any]:
        values: list[Any] = [None] * (self._count + 1)
        fresh: dict[int, torch.UntypedStorage] = {}
        for slot, value in self._given.items():
            data = value.data64
            if slot in self._saved:
                storage, pointer = self._saved[slot]
                if pointer not in fresh:
                    fresh[pointer] = storage.clone()
                data = view_of_storage(data, fresh[pointer])
            elif data._version != self._versions[slot]:
                raise Diverted("a tensor that it was given has changed since")
            values[slot] = Value(data, data)
        return values

    def _seal(self) -> None:
        """Note after which operation each slot is needed no more."""
        last: dict[int, _Entry] = {}
        for entry in self._entries:
            if isinstance(entry, _Mark):
                last.pop(entry.slot, None)
                continue
            if isinstance(entry, _Return):
                continue
            used = (*entry.sources, *(slot for group in entry.alike for slot in group))
            last |= dict.fromkeys((*used, *(slot for slot in entry.targets if slot is not None)), entry)
        freed: dict[int, list[int]] = {}
        for slot, entry in last.items():
            freed.setdefault(id(entry), []).append(slot)
        for entry in self._entries:
            if isinstance(entry, _Entry):
                entry.freed = tuple(freed.get(id(entry), ()))
        self._is_sealed = True


def _half_scaled(value: Value, factor: float) -> Value:
    data = value.data64.clone()
    if data.dim():
        data[..., data.shape[-1] // 2 :] *= factor
    return Value(data, data, value.sigma64, value.bound64)


def _aliases(value: Any) -> list[Any]:
    return list(value.aliases) if isinstance(value, ShadowTensor) else [value]


def _require_same_path(value: Any, expected: Any) -> None:
    found = value.shape if isinstance(value, Tensor) else value
    if found != expected and not (found != found and expected != expected):
        raise Diverted(f"{found!r} in place of {expected!r}")
