"""Hooks on every module of a model: each call, what enters it and what leaves it.

The hooks are the last of their module, so they see inputs after, and outputs after, whatever other
hooks make of them (a parallel style that redistributes a DTensor, for instance). Compiled regions are seen
from outside alone: see `compiled`.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .compiled import enter_region, find_regions, seen_through
from .copies import HostCopy, copy_tensor
from .naming import NameDealer, Scope
from .objects import ObjectNumbers
from .records import Mesh
from .schema import escape_fqn, module_path, noise_path
from .selection import Selection
from .values import flatten, flatten_arguments
from .watch import Place
from .writer import CaptureWriter

__all__ = ["LooksInside", "OpenCall", "Recorder"]


@dataclass(slots=True, kw_only=True)
class OpenCall:
    """A module call that has not returned.

    Attributes:
        scope: its name, and the names of its children.
        id: number of the call, or None if it is not recorded.
        collectives: how many there were of each kind since it began.
    """

    module: nn.Module
    scope: Scope
    id: int | None
    exception: BaseException | None
    collectives: Counter[str] = field(default_factory=Counter)

    @property
    def fqn(self) -> str:
        """The module's name, for this call."""
        return self.scope.fqn


class LooksInside(Protocol):
    """Follows the recorded calls, for what is seen inside of them."""

    def entered(self, call: OpenCall, leaves: Mapping[str, Any]) -> None:
        """Take note of a call that has begun, and of what it was given, by path."""

    def returned(self, call: OpenCall, caller: OpenCall | None, leaves: Mapping[str, Any]) -> None:
        """Take note of a call that has returned, of the one that encloses it, and of its outputs, by path."""


class Recorder:
    """Records the calls of a model's modules.

    Args:
        model: the model; the names of its modules are those seen from it.
        writer: where records go.
        selection: what to record.

    Attributes:
        calls: how often each module was called, recorded or not.
        recorded: number of calls recorded.
        inputs: copies of what entered the first call of all.
        left_out: tensors that could not be stored.
        meshes: device meshes that tensors lay on.
        outermost: stands for the enclosing call where there is none.
        inside: is told of each recorded call, or None.
        is_copying: whether what runs is a copy made here, and nothing of the model's.
    """

    def __init__(self, model: nn.Module, writer: CaptureWriter, selection: Selection) -> None:
        self.calls: Counter[str] = Counter()
        self.recorded = 0
        self.inputs: dict[str, HostCopy] = {}
        self.left_out: set[str] = set()
        self.meshes: set[Mesh] = set()
        self.inside: LooksInside | None = None
        self.is_copying = False
        self._writer = writer
        self._selection = selection
        self._stack: list[OpenCall] = []
        self.outermost = OpenCall(module=model, scope=Scope(), id=None, exception=None)
        self._events = 0
        self._handles: list[RemovableHandle] = []
        self._leave: list[Callable[[], None]] = []
        self._dealer = NameDealer(model)
        self._regions = find_regions(self._dealer.modules)
        self._rows = {fqn: row for row, fqn in enumerate(self._dealer.modules)}
        self._ids: dict[tuple[str, int], int] = {}
        self._objects = ObjectNumbers()

    @property
    def fqns(self) -> tuple[str, ...]:
        """Names of all modules; one that is reached in several ways has several."""
        return tuple(self._rows)

    @property
    def hidden(self) -> frozenset[str]:
        """Names of modules inside of compiled regions, which are not looked at."""
        return frozenset(name for region in self._regions for name in region.hidden)

    @property
    def compiled(self) -> dict[str, int]:
        """How many modules each compiled region hides, by the name of its outermost module."""
        return {region.fqn: len(region.hidden) for region in self._regions}

    def install(self) -> None:
        """Write the list of modules and hook each of them that is in no compiled region."""
        for fqn, module in self._dealer.modules.items():
            type_ = type(seen_through(module))
            self._writer.append("modules", escape_fqn(fqn), f"{type_.__module__}.{type_.__qualname__}")
        modules = {id(module): module for module in self._dealer.modules.values()}
        for region in self._regions:
            self._leave.append(enter_region(region, before=self._before, after=self._after))
            for name in region.inside:
                modules.pop(id(self._dealer.modules[name]), None)
        for module in modules.values():
            self._handles += [
                module.register_forward_pre_hook(self._before, with_kwargs=True),
                # Called for a module that raises too: the stack of open calls stays right.
                module.register_forward_hook(self._after, with_kwargs=True, always_call=True),
            ]

    def remove(self) -> None:
        """Take all hooks off."""
        for undo in (*self._leave, *(handle.remove for handle in self._handles)):
            undo()
        self._leave.clear()
        self._handles.clear()

    def write_fired(self) -> None:
        """Write how often each module was called."""
        for fqn in self.fqns:
            self._writer.append("fired", self.calls[fqn])

    def next_event(self) -> int:
        """Return the next position in the rank's sequence of events."""
        self._events += 1
        return self._events - 1

    def innermost(self) -> OpenCall | None:
        """Return the call that is running, or None outside of the model."""
        return self._stack[-1] if self._stack else None

    def enclosing(self) -> OpenCall | None:
        """Return the innermost open call that is recorded."""
        return next((call for call in reversed(self._stack) if call.id is not None), None)

    def put(self, path: str, row: int, tensor: torch.Tensor) -> bool:
        """Copy a tensor to the edge at `path`; False if it has no values that can be stored."""
        self.is_copying = True
        copy = copy_tensor(tensor)
        self.is_copying = False
        if copy is not None and copy.layout.mesh is not None:
            self.meshes.add(copy.layout.mesh)
        if copy is None:
            self.left_out.add(f"{path}: {type(tensor).__name__} of {tensor.dtype} on {tensor.device}")
            return False
        self._writer.put(path, row, copy)
        return True

    def has_recorded(self, module: str, n: int) -> bool:
        """Say whether the n-th call of a module was recorded."""
        return (module, n) in self._ids

    def put_noise(self, place: Place, noise: torch.Tensor) -> None:
        """Write the noise of a tensor of a recorded call."""
        side = f"{module_path(place.module)}/{place.side}"
        path = noise_path(f"{side}/{place.path}" if place.path else side)
        self.put(path, self._ids[place.module, place.call], noise)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        fqn = self._dealer.name(module, (self.innermost() or self.outermost).scope)
        n = self.calls[fqn]
        self.calls[fqn] += 1
        recorded = self._selection.keeps_module(fqn) and self._selection.keeps_call(n)
        parent = self.enclosing()
        call = OpenCall(module=module, scope=Scope(fqn), id=None, exception=sys.exc_info()[1])
        leaves = {}
        if recorded or (not self._stack and not self.inputs):
            leaves = flatten_arguments(module, args, kwargs)
        if not self._stack and not self.inputs:
            self._keep_inputs(leaves)
        is_outermost = not self._stack
        self._stack.append(call)
        if recorded:
            call.id = self._ids[fqn, n] = self.recorded
            self.recorded += 1
            start = self.next_event()
            described = self._put_leaves(f"{module_path(fqn)}/inputs", call.id, leaves, is_outermost)
            above = -1 if parent is None else parent.id
            self._writer.append("calls", self._rows[fqn], n, above, start, described)
            if self.inside is not None:
                self.inside.entered(call, leaves)

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if all(call.module is not module for call in self._stack):
            return  # Another pre-hook raised before ours.
        call = self._stack.pop()
        while call.module is not module:
            call = self._stack.pop()
        if call.id is None or (output is None and sys.exc_info()[1] is not call.exception):
            return
        described = self._put_leaves(
            f"{module_path(call.fqn)}/outputs", call.id, flatten(output), not self._stack
        )
        self._writer.append("returns", call.id, self.next_event(), described)
        if self.inside is not None:
            self.inside.returned(call, self.enclosing(), flatten(output))

    def _put_leaves(self, path: str, row: int, leaves: Mapping[str, Any], has_objects: bool) -> str:
        described: dict[str, Any] = {}
        for name, leaf in leaves.items():
            if isinstance(leaf, torch.Tensor):
                if self.put(f"{path}/{name}" if name else path, row, leaf):
                    described[name] = {"tensor": True}
            elif isinstance(leaf, float) and not math.isfinite(leaf):
                described[name] = {"float": str(float(leaf))}
            elif leaf is None or isinstance(leaf, bool | int | float | str):
                described[name] = leaf
            elif has_objects and (found := self._objects.describe(leaf)) is not None:
                described[name] = found
        return json.dumps(described)

    def _keep_inputs(self, leaves: Mapping[str, Any]) -> None:
        copies = {name: copy_tensor(x) for name, x in leaves.items() if isinstance(x, torch.Tensor)}
        self.inputs = {name: copy for name, copy in copies.items() if copy is not None}
