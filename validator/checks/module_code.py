"""The code of one call of one module, run in float64: what it made, and what replays of it tell.

Shape legend: * = the edge's shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from validator.align.traces import LogicalTensor, TraceCall
from validator.checks.arithmetic import Step
from validator.checks.operator_log import OperatorLog
from validator.checks.roundings import Constant
from validator.numerics.bands import Noise
from validator.numerics.recipes import Recipe

__all__ = ["ALTERATION", "Code", "CodeChoice", "CodeEdge", "Key", "ReplaysOf", "Spread"]

ALTERATION = 2.0**-20
"""Relative change of a constant: small enough to be linear, far above float64's rounding."""

Key = tuple[int | None, str]
"""An edge of a piece of code: the number of the child (None for an output) and the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEdge:
    """A value that a module's own code made, next to the candidate's.

    Attributes:
        key: position among the edges of this code, the same in every replay: child (or None for an output)
            and path.
        into: the call of the child whose input it is, or None for an output.
        path: where it stands in the child's inputs or in the outputs.
        order: position in the reference's execution order.
        exact: `[*]` the oracle's value: float64, or integer or boolean as it is.
        depth: number of rounding operators behind it; 0 means that it was only passed on.
        sigma, bound: of a single operator, or None.
        cand: the candidate's value, with where its parts came from.
        obstacle: why no rule can judge this edge, or "".
    """

    key: Key
    into: TraceCall | None
    path: str
    order: int
    exact: Tensor
    depth: int
    sigma: Tensor | None
    bound: Tensor | None
    cand: LogicalTensor
    obstacle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChoice:
    """A choice that the code made (`topk`, `argmax`) and that the candidate made otherwise or alike.

    The code goes on with the candidate's choice; the choice itself is judged by its margin.

    Attributes:
        key: as of an edge.
        order: position in the reference's execution order.
        op: aten name.
        best: `[*]` float64, the values that the oracle would have chosen.
        chosen: `[*]` float64, the values at the candidate's choice, in the same order.
    """

    key: Key
    order: int
    op: str
    best: Tensor
    chosen: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What the replays of one piece of code under one recipe say of one edge.

    Attributes:
        sigma: `[*]` float64, measured.
        bound: `[*]` float64 or None.
        coherent: relative error that the whole edge may share, within the bound.
        control: `[*]` float64, rounded to the candidate's format (of a choice: as it is).
    """

    sigma: Tensor
    bound: Tensor | None
    control: Tensor
    coherent: float = 0.0


class ReplaysOf(Protocol):
    """What can be learnt by running the code again."""

    def spread(self, recipe: Recipe, *, is_refined: bool = False) -> Mapping[Key, Spread]:
        """Return the spread of every edge and choice under a recipe; empty if a replay takes another path."""

    def reach(self, recipe: Recipe) -> Mapping[Key, Tensor]:
        """Return `[*]` how far noise that is several times too large carries each edge, by edge."""

    def sensitivity(self, constant: Constant) -> Mapping[Key, Tensor]:
        """Return `[*]` `dy / d log(constant)` by edge."""

    def rows(self, recipe: Recipe) -> Mapping[Key, Noise]:
        """Return what a recipe allows inside of the operator behind each edge that has a single one."""

    def control(
        self,
        recipe: Recipe,
        *,
        elsewhere: Recipe | None = None,
        positions: frozenset[int] | None = None,
        altered: tuple[Constant, float] | None = None,
    ) -> Mapping[Key, Tensor]:
        """Return `[*]` by edge: the code run to nearest under a recipe, rounded to the candidate's format.

        Args:
            recipe: of the operators at `positions`, or of all.
            elsewhere: of the operators that are not at `positions`.
            positions: as in the code's steps.
            altered: a constant of the code, and the factor that it is multiplied by.
        """

    def altered(self, constant: Constant, factor: float) -> Mapping[Key, Tensor]:
        """Return `[*]` values by edge with a constant multiplied by `factor`."""

    def spoilt(self, module: str, factor: float, recipe: Recipe | None = None) -> Mapping[Key, Tensor]:
        """Return `[*]` values by edge with a fault in a module whose code is part of this code.

        Args:
            module: its fqn.
            factor: that the second half of the channels of all it returns is multiplied by.
            recipe: of a noisy run, before its last rounding; None for the oracle's arithmetic.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The code of one call of one module, run in float64.

    Attributes:
        call: as the candidate ran it.
        module: the reference's module.
        edges: what it made, in execution order.
        choices: what it chose, where the candidate's choice is known.
        has_children: whether children of it were captured.
        inlined: fqns of children that are part of this code, because the candidate's calls don't line up.
        constants: the numbers in the code (an epsilon, a scale).
        steps: the operators in the code that round.
        replays: runs the code again; None for a run's inputs, which no code made.
        log: its operators, where they are to be looked into.
    """

    call: TraceCall
    module: nn.Module
    edges: tuple[CodeEdge, ...]
    choices: tuple[CodeChoice, ...]
    has_children: bool
    inlined: tuple[str, ...]
    constants: tuple[Constant, ...]
    steps: tuple[Step, ...] = ()
    replays: ReplaysOf | None
    log: OperatorLog | None = None

    def edge(self, key: Key) -> CodeEdge:
        """Return the edge that a key names."""
        return next(edge for edge in self.edges if edge.key == key)
