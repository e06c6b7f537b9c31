"""The operators that one run of a module's code calls, in order, and what each of them needs.

Tensors are known by slots. A write changes the tensor that a slot stands for, and all that shares its
memory: what a value depends on includes the writes to its memory before it was read.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from validator.checks.aten_calls import Form, flatten_call, listed, written_arguments
from validator.checks.operations import is_floating
from validator.checks.operators import operator_name
from validator.checks.shadow import ShadowTensor, widened

__all__ = ["BECOME", "Given", "LoggedCall", "OperatorLog", "Slot", "is_trivial", "namespaced", "sample"]

BECOME = "become"
"""Stands for the operator where a child changed a tensor that it was given."""

SAMPLES = 1024
"""How many elements of a value are kept to recognise it by."""

_TRIVIAL = frozenset(
    (
        "_reshape_alias",
        "_to_copy",
        "_unsafe_view",
        "clone",
        "contiguous",
        "copy",
        "empty",
        "empty_like",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "zeros_like",
    )
)


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for a tensor among an operator's arguments."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A tensor that comes from outside of the code.

    Attributes:
        tensor: a parameter, buffer, or integer tensor as it is; `[*]` float64 values of another floating one.
        dtype: what the code sees of the latter; None of the former.
    """

    tensor: Tensor
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """An operator that the code called.

    Attributes:
        func: the operator; `BECOME`; or the function that is one operator here, attention.
        leaves, form: its arguments, flattened, with slots in place of tensors.
        made: slot of each result; None for what is no tensor.
        written: slots that it writes to.
        is_view: whether its result shares memory with what it is given.
        shape, dtype: of the first floating result, or of what it writes to; None where there is none.
        samples: some of its values, see `sample`; None where there is none.
        chosen: indices, where it chooses by value.
    """

    func: Any
    leaves: tuple[Any, ...]
    form: Form
    made: tuple[int | None, ...]
    written: tuple[int, ...]
    is_view: bool
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    samples: Tensor | None
    main: int | None
    chosen: Tensor | None = None

    @property
    def name(self) -> str:
        """Name of the operator, without overload; with its namespace if that is not aten."""
        if isinstance(self.func, str):
            return self.func
        return namespaced(self.func)

    @property
    def needs(self) -> tuple[int, ...]:
        """Slots of its arguments."""
        return tuple(leaf.number for leaf in self.leaves if isinstance(leaf, Slot))

    @property
    def is_trivial(self) -> bool:
        """Whether it only changes the form in which values are held."""
        return self.is_view or is_trivial(self.name) or self.func is BECOME

    @property
    def is_replaceable(self) -> bool:
        """Whether it makes one tensor and nothing else: its value may be given in place of running it."""
        return self.main is not None and not self.written and sum(x is not None for x in self.made) == 1


@dataclass(slots=True, kw_only=True)
class OperatorLog:
    """Keeps the operators that code calls under an `Arithmetic`.

    Attributes:
        lift: gives a parameter's float64 values, and the dtype that the code sees.
        calls: in order.
        given: tensors from outside of the code, by slot.
        marks: where an edge of the code stands: slot, and how many operators were called before, by key.
        names: what tensors from outside are called, by slot.
    """

    lift: Callable[[Tensor], tuple[Tensor, torch.dtype]]
    calls: list[LoggedCall] = field(default_factory=list)
    given: dict[int, Given] = field(default_factory=dict)
    marks: dict[Any, tuple[int, int]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    _slots: dict[int, int] = field(default_factory=dict)
    _kept: list[Tensor] = field(default_factory=list)
    _roots: dict[int, int] = field(default_factory=dict)
    _open: tuple[Any, tuple[Any, ...], Form, list[Tensor]] | None = None

    def calling(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Take note of an operator before it runs."""
        leaves, form = flatten_call(args, kwargs)
        written = []
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:
            written = [x for x in written_arguments(func, args, kwargs) if isinstance(x, Tensor)]
        elif func is BECOME:
            written = [leaves[0]]
        changed = {id(x) for x in written}
        held = tuple(
            Slot(self._slot(x, is_changed=id(x) in changed)) if isinstance(x, Tensor) else x for x in leaves
        )
        self._open = func, held, form, written

    def called(self, result: Any) -> None:
        """Take note of what the operator returned."""
        assert self._open is not None
        func, leaves, form, written = self._open
        self._open = None
        results = listed(result)
        is_view = isinstance(func, torch._ops.OpOverload) and _shares(func)
        targets = tuple(self._slots[id(x)] for x in written)
        base = next((leaf.number for leaf in leaves if isinstance(leaf, Slot)), None)
        made: list[int | None] = []
        for x in results:
            if not isinstance(x, Tensor):
                made.append(None)
            elif id(x) in self._slots:
                made.append(self._slots[id(x)])
            else:
                slot = self._new(x)
                self._roots[slot] = self._roots[base] if is_view and base is not None else slot
                made.append(slot)
        floats = [x for x in (written or results) if isinstance(x, ShadowTensor)]
        main = floats[0] if floats else None
        integers = [x for x in results if isinstance(x, Tensor) and not is_floating(x)]
        self.calls.append(
            LoggedCall(
                func=func,
                leaves=leaves,
                form=form,
                made=tuple(made),
                written=targets,
                is_view=is_view,
                shape=None if main is None else tuple(main.shape),
                dtype=None if main is None else main.dtype,
                samples=None if main is None else sample(main.data64),
                main=None if main is None else self._slots[id(main)],
                chosen=integers[0].clone() if integers else None,
            )
        )

    def became(self, target: ShadowTensor, source: ShadowTensor) -> None:
        """Take note of a child that changed a tensor."""
        self.calling(BECOME, (target, source), {})
        self.called(None)

    def name(self, tensor: Any, name: str) -> None:
        """Give a tensor from outside a name."""
        if isinstance(tensor, Tensor):
            self.names.setdefault(self._slot(tensor), name)

    def mark(self, key: Any, value: Tensor) -> None:
        """Take note that a value is an edge of the code now."""
        if isinstance(value, ShadowTensor):
            self.marks[key] = self._slot(value), len(self.calls)

    def behind(self, slot: int, end: int, starts: Collection[int] = ()) -> list[int]:
        """Return the positions of the calls that make what a slot holds, in order.

        Args:
            slot: which.
            end: how many calls there were when it was read.
            starts: positions of calls whose results are known: what they are made of is left out.
        """
        slots, roots = {slot}, {self._roots[slot]}
        found = []
        for position in range(end - 1, -1, -1):
            call = self.calls[position]
            writes = any(self._roots[x] in roots for x in call.written)
            if not writes and not any(x in slots for x in call.made):
                continue
            found.append(position)
            if position in starts and call.is_replaceable:
                continue
            slots.update(call.needs)
            roots.update(self._roots[x] for x in call.needs)
        return found[::-1]

    def is_written(self, slot: int) -> bool:
        """Tell whether any call writes to a slot's memory."""
        root = self._roots[slot]
        return any(self._roots[x] == root for call in self.calls for x in call.written)

    def _slot(self, tensor: Tensor, *, is_changed: bool = False) -> int:
        number = self._slots.get(id(tensor))
        if number is None:
            number = self._new(tensor)
            self._roots[number] = number
            if isinstance(tensor, ShadowTensor):
                self.given[number] = Given(tensor=tensor.data64.clone(), dtype=tensor.dtype)
            else:
                # The model's own parameters stay as they are, and are large; what is no float may change.
                held = tensor if is_floating(tensor) else tensor.clone()
                self.given[number] = Given(tensor=held, dtype=None)
        if is_changed and number in self.given and self.given[number].tensor is tensor:
            # The model's own: a rerun must change a copy.
            if is_floating(tensor):
                self.given[number] = Given(tensor=widened(tensor).clone(), dtype=tensor.dtype)
            else:
                self.given[number] = Given(tensor=tensor.clone(), dtype=None)
        return number

    def _new(self, tensor: Tensor) -> int:
        number = len(self._kept)
        self._kept.append(tensor)  # as long as it lives no other tensor has its identity
        self._slots[id(tensor)] = number
        return number


def is_trivial(name: str) -> bool:
    """Tell whether an operator only changes the form in which values are held."""
    return name in _TRIVIAL


def namespaced(func: Any) -> str:
    """Return an operator's name without overload, and with its namespace if that is not aten."""
    if not isinstance(func, torch._ops.OpOverload):
        return str(getattr(func, "__name__", func))
    space = func._schema.name.split("::")[0]
    name = operator_name(func)
    return name if space == "aten" else f"{space}.{name}"


def sample(values: Tensor) -> Tensor:
    """Return `[n]` some of the elements, the same places in each tensor of a size."""
    flat = torch.view_as_real(values) if values.is_complex() else values
    flat = flat.reshape(-1)
    if flat.numel() <= SAMPLES:
        return flat.to(torch.float64, copy=True)
    places = torch.randint(flat.numel(), (SAMPLES,), generator=torch.Generator().manual_seed(flat.numel()))
    return flat[places].to(torch.float64)


def _shares(func: Any) -> bool:
    return bool(func.is_view) or operator_name(func) in ("_unsafe_view", "_reshape_alias")
