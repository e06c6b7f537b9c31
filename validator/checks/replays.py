"""Replays of one module's code: the same arguments, the same answers from its children, other arithmetic.

Shape legend: * = the edge's shape.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from validator.capturing.values import flatten, flatten_arguments, rebuild
from validator.checks.arithmetic import Arithmetic, Constant, Rounding
from validator.checks.module_code import ALTERATION, CodeChoice, CodeEdge, Key, Spread
from validator.checks.shadow import ShadowTensor, real_view
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = ["RUNS", "Diverted", "Frame", "Replays", "Returned", "Snapshot", "copied"]

RUNS = 12
"""Stochastic runs behind a measured sigma, and the weight of its row's mean: NUMERICS sections 4 and 10."""
SHRINKAGE = 8
REFINEMENT = 8
"""How many times more runs decide where a few elements are a little outside of the band.

With 12 runs the variance of an element that is noisier than its row can come out at a tenth of what it is,
once in 1e5 elements; with 96 runs at half, once in 1e7.
"""


class Diverted(Exception):  # noqa: N818 - it is caught by us, and no error
    """A replay took another path through the code than the float64 run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a child's call did for its parent.

    Attributes:
        fqn: of the child.
        output: what it returned.
        changed: arguments that it changed in place, by path, as they were then.
        passed_on: which outputs are arguments themselves: path of the output to path of the argument.
    """

    fqn: str
    output: Any
    changed: Mapping[str, ShadowTensor]
    passed_on: Mapping[str, str]

    def hand_over(self, given: Mapping[str, Any]) -> Any:
        """Change the parent's tensors as the child did, and return what the child returned.

        Args:
            given: the parent's arguments by path.
        """
        for path, new in self.changed.items():
            if isinstance(given[path], ShadowTensor):
                given[path].become(new)

        def handed(path: str, leaf: Any) -> Any:
            argument = given.get(self.passed_on.get(path, ""))
            if isinstance(argument, ShadowTensor) and isinstance(leaf, ShadowTensor):
                argument.become(leaf)
                return argument
            return leaf

        return rebuild(copied(self.output), handed)


@dataclass(slots=True)
class Frame:
    """A module's code while it runs.

    Attributes:
        arithmetic: what it runs under.
        edges, choices: what it has made so far.
        returned: what its children returned, in the order of their calls.
        inlined: fqns of children that are part of this code.
        known: what children returned in an earlier attempt at this code.
        replayed: what a replay has made so far; None in the first run.
        position: how many children a replay has called.
        is_plain: the code runs outside of the arithmetic, since it can't run in float64.
    """

    arithmetic: Arithmetic
    edges: list[CodeEdge] = field(default_factory=list)
    choices: list[CodeChoice] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    known: Sequence[Returned] = ()
    replayed: dict[Key, ShadowTensor] | None = None
    position: int = 0
    is_plain: bool = False

    def answer(
        self, fqn: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """Note what a replay hands to a child, and return what the child returned; None for an inlined child.

        Raises:
            Diverted: the first run did not call this child here.
        """
        assert self.replayed is not None
        if fqn in self.inlined:
            return None
        if self.position >= len(self.returned) or self.returned[self.position].fqn != fqn:
            raise Diverted(fqn)
        given = flatten_arguments(module, args, kwargs)
        returned = self.returned[self.position]
        for path, value in given.items():
            if isinstance(value, ShadowTensor):
                # A copy: the code may go on to change the tensor in place.
                self.replayed[(self.position, path)] = value.copied()
        self.position += 1
        return (returned.hand_over(given),)


class Snapshot:
    """What code may change in place, as it was before a call: tensors and caches it is given, and buffers."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module) -> None:
        self._saved = _deep_copy((args, kwargs))
        self._before = [(buffer, buffer.clone()) for buffer in module.buffers()]
        self._changed: list[tuple[Tensor, Tensor, Tensor]] = []

    def close(self) -> None:
        """Note, after the first run of the code, which buffers it changed."""
        self._changed = [
            (buffer, before, buffer.clone())
            for buffer, before in self._before
            if not torch.equal(buffer, before)
        ]
        self._before = []

    def restore(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a fresh copy of the arguments."""
        args, kwargs = _deep_copy(self._saved)
        return args, kwargs

    @contextmanager
    def buffers(self) -> Iterator[None]:
        """Give a replay the buffers of the first run, and leave them as that run left them."""
        for buffer, before, _ in self._changed:
            buffer.copy_(before)
        try:
            yield
        finally:
            for buffer, _, after in self._changed:
                buffer.copy_(after)


@dataclass(slots=True, kw_only=True)
class Replays:
    """Runs a module's code again.

    Attributes:
        frame: of its first run.
        snapshot: of its arguments.
        arithmetic: makes the context for a rounding.
        execute: runs the code in a frame.
        runs: stochastic runs behind a measured sigma.
    """

    frame: Frame
    snapshot: Snapshot
    arithmetic: Callable[[Rounding], Arithmetic]
    execute: Callable[[Frame, tuple[Any, ...], dict[str, Any]], Any]
    runs: int
    _spreads: dict[tuple[Recipe, int], Mapping[Key, Spread]] = field(default_factory=dict)
    _sensitivities: dict[Constant, Mapping[Key, Tensor]] = field(default_factory=dict)

    def spread(self, recipe: Recipe, *, is_refined: bool = False) -> Mapping[Key, Spread]:
        """Run under stochastic rounding and once to nearest; empty if a run takes another path."""
        runs = REFINEMENT * self.runs if is_refined else self.runs
        if (recipe, runs) not in self._spreads:
            try:
                self._spreads[recipe, runs] = self._measure(recipe, runs)
            except (Diverted, KeyError):
                self._spreads[recipe, runs] = {}
        return self._spreads[recipe, runs]

    def sensitivity(self, constant: Constant) -> Mapping[Key, Tensor]:
        """Return `dy / d log(constant)` of every edge with more than one rounding behind it."""
        if constant not in self._sensitivities:
            made = self.altered(constant, 1 + ALTERATION)
            self._sensitivities[constant] = {
                edge.key: (made[edge.key] - edge.exact) / ALTERATION
                for edge in self.frame.edges
                if edge.depth > 1 and edge.key in made
            }
        return self._sensitivities[constant]

    def altered(self, constant: Constant, factor: float) -> Mapping[Key, Tensor]:
        """Return the edges' values with a constant altered; empty if that takes another path."""
        try:
            made = self._run(Rounding.altering(constant, factor))
        except Diverted:
            return {}
        return {key: real_view(shadow.exact64) for key, shadow in made.items()}

    def _measure(self, recipe: Recipe, runs: int) -> Mapping[Key, Spread]:
        exact = {edge.key: edge.exact for edge in self.frame.edges if edge.depth > 1}
        exact |= {choice.key: choice.chosen for choice in self.frame.choices}
        squares = {key: torch.zeros_like(value) for key, value in exact.items()}
        bounds: dict[Key, Tensor | None] = {}
        cache: dict[int, Tensor | None] = {}
        for seed in range(runs):
            made = self._run(Rounding.stochastic(recipe, seed, cache))
            for key, value in exact.items():
                squares[key] += (real_view(made[key].exact64) - value).square()
                bounds[key] = made[key].bound64
        control = self._run(Rounding.nearest(recipe))
        nearest = {key: real_view(shadow.exact64) for key, shadow in control.items()}
        formats = {edge.key: format_of(edge.cand.data.dtype) for edge in self.frame.edges if edge.depth > 1}
        spreads = {}
        for key, value in exact.items():
            fmt = formats.get(key)
            spreads[key] = Spread(
                sigma=_shrunk(squares[key] / runs, ulp(value, fmt or format_of("float32")), runs),
                bound=bounds[key],
                control=nearest[key] if fmt is None else round_nearest(nearest[key], fmt),
            )
        return spreads

    def _run(self, rounding: Rounding) -> dict[Key, ShadowTensor]:
        arithmetic = self.arithmetic(rounding)
        replay = Frame(
            arithmetic=arithmetic, returned=self.frame.returned, inlined=self.frame.inlined, replayed={}
        )
        with self.snapshot.buffers():
            output = self.execute(replay, *self.snapshot.restore())
        assert replay.replayed is not None
        made = replay.replayed
        made |= {
            (None, path): value for path, value in flatten(output).items() if isinstance(value, ShadowTensor)
        }
        return made | {(None, choice.name): choice.chosen for choice in arithmetic.choices}


def copied(value: Any) -> Any:
    """Return a nested value with copies of its shadow tensors, which code may change in place.

    A tensor that stands in two places is copied once.
    """
    copies: dict[int, ShadowTensor] = {}

    def copy_leaf(_: str, leaf: Any) -> Any:
        if not isinstance(leaf, ShadowTensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.copied()
        return copies[id(leaf)]

    return rebuild(value, copy_leaf)


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


def _shrunk(variance: Tensor, spacing: Tensor, runs: int) -> Tensor:
    """Shrink per-element variances towards their row's mean, in units of the squared ulp."""
    spacing = spacing.nan_to_num(nan=1.0)
    relative = (variance / spacing.square()).nan_to_num(nan=0.0)
    mean = relative.mean(-1, keepdim=True) if relative.dim() else relative
    return torch.sqrt((runs * relative + SHRINKAGE * mean) / (runs + SHRINKAGE)) * spacing
