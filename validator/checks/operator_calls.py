"""An operator that code calls: which operation it is, and what is known of its results beside values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet

import torch

from validator.checks.aten_calls import Form, packed, unflatten_call
from validator.checks.computations import Attend, Compute
from validator.checks.operations import Move, Operation, Pick, Value, Write
from validator.checks.operator_noise import is_known
from validator.checks.operators import ATTENTION, KERNELS
from validator.checks.selections import Choice
from validator.checks.shadow import ShadowTensor
from validator.numerics.formats import format_of
from validator.numerics.rounding import round_nearest

__all__ = ["OperatorCall", "Plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an operator comes to.

    Attributes:
        operation: computes it.
        depths: how many roundings are behind each result.
        casts: whether each result was cast to a narrower dtype after the last of them.
        unknown: name of an operator behind the results whose rounding is not known, or "".
        aliases: the shadows that share memory with the results; None where those have their own.
    """

    operation: Operation
    depths: Sequence[int]
    casts: Sequence[bool]
    unknown: str
    aliases: "WeakSet[ShadowTensor] | None" = None

    @property
    def is_constant(self) -> bool:
        """Whether no rounding can change the results: values that came from outside, only moved."""
        return not any(self.depths) and not any(self.casts)

    def shadowed(self, results: list[Any]) -> list[Any]:
        """Return the operation's results as the code sees them."""
        made = []
        for x, dtype, depth, is_cast in zip(
            results, self.operation.made, self.depths, self.casts, strict=False
        ):
            if isinstance(x, Value) and dtype is not None:
                x = ShadowTensor(
                    x.data64,
                    dtype,
                    exact64=x.exact64,
                    depth=depth,
                    is_cast=is_cast,
                    sigma64=x.sigma64,
                    bound64=x.bound64,
                    unknown=self.unknown,
                    aliases=self.aliases,
                )
            made.append(x)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """An operator that the code calls.

    Attributes:
        func: the aten operator, or the function that is one.
        name: of the operator.
        leaves: its flattened arguments, floating tensors as shadows.
        form: puts them back into shape.
        holes: which of them are values of the code: shadows, and integers that rounded values decided.
        rounds: whether it rounds, rather than only moves, selects or fills values.
        position: which of the code's rounding operators it is, or the last of those before it.
    """

    func: Any
    name: str
    leaves: Sequence[Any]
    form: Form
    holes: tuple[int, ...]
    rounds: bool
    position: int

    @property
    def flowing(self) -> list[Any]:
        """The values that go in, as the code sees them."""
        return [self.leaves[i] for i in self.holes]

    @property
    def inputs(self) -> list[Any]:
        """The values that go in."""
        return [x if isinstance(x, ShadowTensor) else Value(x, x) for x in self.flowing]

    @property
    def shadows(self) -> list[ShadowTensor]:
        """The floating ones of them."""
        return [x for x in self.flowing if isinstance(x, ShadowTensor)]

    @property
    def depth(self) -> int:
        """Roundings behind the inputs, a cast on the way to this operator included."""
        return max([x.depth + x.is_cast for x in self.shadows], default=0)

    @property
    def is_decided(self) -> bool:
        """Whether rounded values decide some of the inputs."""
        return len(self.shadows) < len(self.holes)

    @property
    def source(self) -> ShadowTensor | None:
        """What an operator that chooses by value chooses from."""
        first = self.leaves[0] if self.holes and self.holes[0] == 0 else None
        return first if isinstance(first, ShadowTensor) else None

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as the code gave them."""
        return unflatten_call(self.leaves, self.form)

    def packed(self, results: list[Any]) -> Any:
        """Return results in the form in which the operator returns them."""
        return packed(self.func, results)

    def computing(self, made: tuple[Any, ...]) -> Plan:
        """Return the plan of an operator that rounds.

        Args:
            made: dtypes of its results, None for what isn't floating.
        """
        depth = max(1 + self.depth, 2 if self.is_decided else 0)
        operation = Compute(**self._common(), made=made, is_single=depth == 1)
        return Plan(
            operation=operation,
            depths=[depth] * len(made),
            casts=[False] * len(made),
            unknown=self._unknown(),
        )

    def attending(self, dtype: torch.dtype) -> Plan:
        """Return the plan of attention.

        It is judged by noisy runs even where it is the only operator: its band depends on the recipe.
        """
        operation = Attend(**self._common(), made=(dtype,))
        return Plan(operation=operation, depths=[2], casts=[False], unknown=self._unknown())

    def moving(self, made: tuple[Any, ...]) -> Plan:
        """Return the plan of an operator that only moves values.

        Args:
            made: dtypes of its results, None for what isn't floating.
        """
        shadows = self.shadows
        depth, is_cast = max([x.depth for x in shadows], default=0), any(x.is_cast for x in shadows)
        is_complex = any(x.is_complex() for x in shadows) or any(x is not None and x.is_complex for x in made)
        if is_complex:
            depth = max(depth + 1, 2) if depth else 0
        elif len(shadows) > 1 and any(x.sigma64 is not None for x in shadows):
            depth += 1
        if self.is_decided:
            depth = max(depth, 2)
        first = shadows[0].dtype if shadows else None
        narrows = [x is not None and self._narrows(x, first) for x in made]
        # A narrower value that is widened again was rounded on the way, not last.
        widens = [is_cast and None not in (x, first) and _is_narrower(first, x) for x in made]
        operation = Move(
            **self._common(),
            made=made,
            narrows=tuple(narrows),
            widens=tuple(widens),
            moves_noise=len(shadows) == 1 and not is_complex,
        )
        return Plan(
            operation=operation,
            depths=[max(depth + 1, 2) if x else depth for x in widens],
            casts=[(is_cast and not x) or y for x, y in zip(widens, narrows, strict=True)],
            unknown=self._unknown(),
            aliases=shadows[0].aliases if shadows and self.func.is_view else None,
        )

    def picking(self, choice: Choice, source: ShadowTensor) -> Plan:
        """Return the plan of an operator that chooses by value, for a choice that is made.

        The values at the choice come after the operator's own results.
        """
        own = choice.own
        operation = Pick(
            **self._common(),
            made=(*([source.dtype] if own.has_values else []), None, source.dtype),
            dim=own.dim,
            chosen=choice.indices,
            is_wide=own.indices.dim() == source.dim(),
            is_ordered=own.is_ordered,
            has_values=own.has_values,
        )
        depths, casts = [source.depth] * len(operation.made), [source.is_cast] * len(operation.made)
        return Plan(operation=operation, depths=depths, casts=casts, unknown=source.unknown)

    def writing(self, targets: list[Any]) -> Plan:
        """Return the plan of an operator that changes tensors in place; what it says is of these.

        Args:
            targets: the ones among the flowing values.
        """
        shadows, flowing = self.shadows, self.flowing
        floats = [x if isinstance(x, ShadowTensor) else None for x in targets]
        operation = Write(
            **self._common(),
            made=(),
            written=tuple([next(i for i, y in enumerate(flowing) if y is x) for x in targets]),
            dtypes=tuple([None if x is None else x.dtype for x in floats]),
            narrows=tuple(
                [x is not None and any(_is_narrower(x.dtype, y.dtype) for y in shadows) for x in floats]
            ),
        )
        depths = [max(self.depth + self.rounds, 2)] * len(targets)
        return Plan(operation=operation, depths=depths, casts=[], unknown=self._unknown())

    def _common(self) -> dict[str, Any]:
        """Return what every operation is made from: all that the operator is given, but for the values."""
        fixed = [_widened_dtype(x) for x in self.leaves]
        for hole in self.holes:
            fixed[hole] = None
        given = tuple([x.dtype for x in self.shadows])
        return {
            "name": self.name,
            "kernel": KERNELS.get(self.name, self.func),
            "leaves": tuple(fixed),
            "form": self.form,
            "holes": self.holes,
            "given": given,
            "rounds": self.rounds,
            "position": self.position,
            # Factories without a dtype, and divisions of integers, give the default one.
            "has_default": not given,
        }

    def _unknown(self) -> str:
        behind = next((x.unknown for x in self.shadows if x.unknown), "")
        is_understood = not self.rounds or self.name == ATTENTION or is_known(self.name)
        return behind or ("" if is_understood else f"aten.{self.name}")

    def _narrows(self, dtype: torch.dtype, first: torch.dtype | None) -> bool:
        """Tell whether a result can't hold what goes in: the values, or a number that is moved among them."""
        if first is not None and _is_narrower(dtype, first):
            return True
        numbers = [x for x in self.leaves if isinstance(x, float) and math.isfinite(x)]
        if not numbers:
            return False
        exact = torch.tensor(numbers, dtype=torch.float64)
        return not torch.equal(round_nearest(exact, format_of(dtype.to_real())), exact)


@cache
def _is_narrower(dtype: torch.dtype, than: torch.dtype) -> bool:
    return format_of(dtype.to_real()).precision < format_of(than.to_real()).precision


def _widened_dtype(value: Any) -> Any:
    """Replace a floating `dtype=` by float64."""
    if isinstance(value, torch.dtype):
        if value.is_floating_point:
            return torch.float64
        if value.is_complex:
            return torch.complex128
    return value
