"""The calls of the walk that are running, and what those that returned leave behind for their parents."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.traces import LogicalTensor, TraceCall
from validator.capturing.values import rebuild
from validator.checks.arithmetic import Arithmetic
from validator.checks.module_code import CodeEdge
from validator.checks.operator_log import OperatorLog
from validator.checks.shadow import ShadowTensor, widened
from validator.checks.substitution import Compared
from validator.checks.tape import Tape

__all__ = ["Frame", "Returned", "Snapshot", "returned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ViewOf:
    """An output that shares memory with an argument, both as the child saw them."""

    argument: str
    like: ShadowTensor
    of: ShadowTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a child's call did for its parent.

    Attributes:
        fqn: of the child.
        output: what it returned.
        changed: arguments that it changed in place, by path, as they were then.
        passed_on: which outputs are arguments themselves: path of the output to path of the argument.
        views: which outputs are views of arguments, by path.
    """

    fqn: str
    output: Any
    changed: Mapping[str, ShadowTensor] = field(default_factory=dict)
    passed_on: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, _ViewOf] = field(default_factory=dict)

    def hand_over(self, given: Mapping[str, Any], arithmetic: Arithmetic) -> Any:
        """Change the parent's tensors as the child did, and return what the child returned.

        Args:
            given: the parent's arguments by path.
            arithmetic: the parent's, suspended.
        """
        for path, new in self.changed.items():
            if isinstance(given[path], ShadowTensor):
                arithmetic.become(given[path], new)
        copies: dict[int, ShadowTensor] = {}

        def handed(path: str, leaf: Any) -> Any:
            if not isinstance(leaf, ShadowTensor):
                return leaf
            shared = self._shared(path, leaf, given, arithmetic)
            if shared is not None:
                arithmetic.become(shared, leaf)
                return shared
            # A copy, since the parent may change it in place; of a tensor in two places one.
            if id(leaf) not in copies:
                copies[id(leaf)] = leaf.copied()
            return copies[id(leaf)]

        return rebuild(self.output, handed)

    def _shared(
        self, path: str, leaf: ShadowTensor, given: Mapping[str, Any], arithmetic: Arithmetic
    ) -> ShadowTensor | None:
        """Return the parent's tensor that an output is, or is a view of."""
        argument = given.get(self.passed_on.get(path, ""))
        if isinstance(argument, ShadowTensor) and argument.shape == leaf.shape:
            return argument
        if path not in self.views:
            return None
        view = self.views[path]
        base = given.get(view.argument)
        if not isinstance(base, ShadowTensor) or base.stride() != view.of.stride():
            return None
        return arithmetic.view(base, view.like, view.of)


@dataclass(slots=True)
class Frame:
    """A module's code while it runs.

    Attributes:
        arithmetic: what it runs under.
        call: whose code it is; None for what runs the model, and for code that runs plainly.
        tape: keeps its operations.
        edges: what it has made so far.
        returned: what its children returned, in the order of their calls.
        inlined: fqns of children that are part of this code.
        known: what children returned in an earlier attempt at this code.
        shown: names of choices by the edge that shows them: module and number of a call, and path.
        log: keeps the operators that it calls, where these are wanted.
        is_plain: the code runs outside of the arithmetic, since it can't run in float64.
    """

    arithmetic: Arithmetic
    call: TraceCall | None = None
    tape: Tape = field(default_factory=Tape)
    edges: list[CodeEdge] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    known: Sequence[Returned] = ()
    shown: dict[tuple[str, int, str], str] = field(default_factory=dict)
    log: OperatorLog | None = None
    is_plain: bool = False

    def known_return(self, fqn: str) -> Returned | None:
        """Return what the next child returned in an earlier attempt, if it is this child."""
        n = len(self.returned)
        return self.known[n] if n < len(self.known) and self.known[n].fqn == fqn else None


class Snapshot:
    """What code may change in place, as it was before a call: tensors and caches it is given, and buffers."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module) -> None:
        self._saved = _deep_copy((args, kwargs))
        self._buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def restore(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a fresh copy of the arguments, and take back what happened to the buffers."""
        for buffer, before in self._buffers:
            buffer.copy_(before)
        args, kwargs = _deep_copy(self._saved)
        return args, kwargs


def returned(
    fqn: str, output: Any, outputs: Mapping[str, Any], arguments: Mapping[str, Any], given: Compared
) -> Returned:
    """Return what a call did for its parent.

    Args:
        fqn: of the module.
        output: with the candidate's values in it.
        outputs: the leaves that the code itself returned, by path.
        arguments: the leaves that it was given, by path, as it left them.
        given: the candidate's values among the arguments.
    """
    changed = {}
    for path, (_, cand) in given.items():
        value = arguments[path]
        if isinstance(value, ShadowTensor) and _differs(value.data64, cand):
            changed[path] = value.copied()
    shadows = {path: x for path, x in arguments.items() if isinstance(x, ShadowTensor)}
    places = {id(x): path for path, x in shadows.items()}
    passed_on = {path: places[id(x)] for path, x in outputs.items() if id(x) in places}
    views = {}
    for path, x in outputs.items():
        if path in passed_on or not isinstance(x, ShadowTensor):
            continue
        base = next((name for name, argument in shadows.items() if argument.aliases is x.aliases), None)
        if base is not None:
            views[path] = _ViewOf(argument=base, like=x, of=shadows[base])
    return Returned(fqn=fqn, output=output, changed=changed, passed_on=passed_on, views=views)


def _differs(value: Tensor, cand: LogicalTensor) -> bool:
    before = widened(cand.data)
    return not torch.equal(value, before) and bool(
        ((value != before) & ~(value.isnan() & before.isnan())).any()
    )


def _deep_copy(value: Any) -> Any:
    memo: dict[int, Any] = {}

    def copy_leaf(_: str, leaf: Any) -> Any:
        if isinstance(leaf, ShadowTensor):
            return leaf.copied()
        if isinstance(leaf, Tensor):
            return leaf.clone()
        if isinstance(leaf, nn.Module) or callable(leaf) or leaf is None:
            return leaf
        return copy.deepcopy(leaf, memo)

    return rebuild(value, copy_leaf)
