"""One operator of a piece of code, kept so that it can be run again on other values under other rounding.

What flows into an operation are values: tensors that the code computed or was given. All else that the
operator was called with (weights, numbers, shapes) is part of the operation.

Shape legend: * = any shape.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from validator.checks.aten_calls import Form, listed, unflatten_call
from validator.checks.masks import with_far_masks
from validator.checks.operators import ATTENTION
from validator.checks.roundings import Rounding
from validator.numerics.formats import Format, format_of

__all__ = [
    "Become",
    "Held",
    "Move",
    "Operation",
    "Pick",
    "Value",
    "Write",
    "is_floating",
    "view_of_storage",
]


class Held(Protocol):
    """The values of one tensor: `Value` and `ShadowTensor` both are."""

    data64: Any
    exact64: Any
    sigma64: Any
    bound64: Any


@dataclass(slots=True)
class Value:
    """The values of one tensor.

    Attributes:
        data64: `[*]` float64 (complex128 of a complex one; integers and booleans as they are): what later
            operators see.
        exact64: `[*]` the value before this tensor's own last rounding, `data64` itself where there was none.
        sigma64: `[*]` float64 or None: sigma of the last operator's inner arithmetic.
        bound64: `[*]` float64 or None: hard bound on a coherent error of the last operator.
    """

    data64: Tensor
    exact64: Tensor
    sigma64: Tensor | None = None
    bound64: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation(ABC):
    """An operator, but for the values that flow into it.

    Attributes:
        name: of the operator.
        kernel: computes it in float64.
        leaves: its flattened arguments.
        form: puts them back into shape.
        holes: which of the leaves are values.
        given: dtypes that the code sees of the floating ones, in order.
        made: dtypes that the code sees of the results; None for what isn't floating.
        rounds: whether it rounds, rather than only moves, selects or fills values.
        position: which of the code's rounding operators it is, or the last of those before it.
        has_default: whether its result has torch's default dtype, since no floating tensor goes in.
    """

    name: str
    kernel: Callable[..., Any]
    leaves: tuple[Any, ...]
    form: Form
    holes: tuple[int, ...]
    given: tuple[torch.dtype, ...]
    made: tuple[torch.dtype | None, ...]
    rounds: bool
    position: int
    has_default: bool = False

    @abstractmethod
    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        """Compute the results.

        Args:
            inputs: the values for the holes.
            rounding: what happens to each result.
            alike: for each tensor that is written to, the values that share its memory, its own included.

        Returns:
            A `Value` for each floating result; others as they are.
        """

    def arguments(
        self, inputs: Sequence[Held], attribute: str, rounding: Rounding
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the operator's arguments with one attribute of the values in place."""
        leaves = list(self.leaves)
        for hole, value in zip(self.holes, inputs, strict=True):
            leaves[hole] = getattr(value, attribute)
        if self.name == "add" and (rounding.recipe is None or rounding.recipe.inner != "storage"):
            leaves = with_far_masks(leaves, self.given)
        if rounding.altered is not None and self.rounds and rounding.altered[0].position == self.position:
            constant, factor = rounding.altered
            leaves[constant.leaf] = leaves[constant.leaf] * factor
        return unflatten_call(leaves, self.form)

    def call(self, inputs: Sequence[Held], attribute: str, rounding: Rounding) -> Any:
        """Run the kernel on one attribute of the values."""
        args, kwargs = self.arguments(inputs, attribute, rounding)
        if not self.has_default:
            return self.kernel(*args, **kwargs)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self.kernel(*args, **kwargs)
        finally:
            torch.set_default_dtype(default)

    @property
    def is_softmax(self) -> bool:
        """Whether it divides by a sum of exponentials."""
        return self.name in _SOFTMAXES

    @property
    def fmt(self) -> Format:
        """Storage format of the first floating operand."""
        return format_of(self.given[0].to_real()) if self.given else format_of("float32")


_SOFTMAXES = ("_softmax", ATTENTION)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move(Operation):
    """An operator that moves, selects or fills values.

    Attributes:
        narrows: of each result, whether it is held in a narrower format, so that it is rounded.
        widens: of each result, whether it was held in a narrower one before: that rounding is not its last.
        moves_noise: whether what is known of the noise of the only value moves with it.
    """

    narrows: tuple[bool, ...]
    widens: tuple[bool, ...]
    moves_noise: bool

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        """Move the values, and what is known of them alike."""
        data = listed(self.call(inputs, "data64", rounding))
        exact = data
        if any(value.exact64 is not value.data64 for value in inputs):
            exact = listed(self.call(inputs, "exact64", rounding))
        sigma, bound = self._moved(inputs, "sigma64", rounding), self._moved(inputs, "bound64", rounding)
        made: list[Any] = []
        for i, x in enumerate(data):
            if not is_floating(x):
                made.append(x)
                continue
            value = Value(
                x,
                x if self.widens[i] else exact[i],
                None if sigma is None or self.widens[i] else sigma[i],
                None if bound is None else bound[i],
            )
            dtype = self.made[i]
            if self.narrows[i] and rounding.recipe is not None and rounding.recipe.inner == "storage":
                assert dtype is not None
                value.data64, value.exact64 = rounding.round(x, dtype, self.position), x
            made.append(value)
        return made

    def _moved(self, inputs: Sequence[Held], attribute: str, rounding: Rounding) -> list[Any] | None:
        """Move a sigma or bound, which stays positive where values don't."""
        if not self.moves_noise:
            return None
        places = [i for i, value in enumerate(inputs) if getattr(value, attribute) is not None]
        if not places:
            return None
        noise = [
            Value(getattr(value, attribute), value.data64)
            if i in places
            else Value(value.data64, value.data64)
            for i, value in enumerate(inputs)
        ]
        moved = listed(self.call(noise, "data64", rounding))
        return [x.abs() if isinstance(x, Tensor) else x for x in moved]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pick(Operation):
    """A choice by value that is made already: what the operator gives for those indices.

    Its results are those of the operator, and then the values at the choice, which are compared.

    Attributes:
        dim: along which it chooses.
        chosen: `[*]` int64, the indices.
        is_wide: whether the indices have as many dims as what is chosen from.
        is_ordered: whether the order of what was chosen counts.
        has_values: whether the operator returns the values beside the indices.
    """

    dim: int
    chosen: Tensor
    is_wide: bool
    is_ordered: bool
    has_values: bool

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        """Gather the values at the choice."""
        (source,) = inputs
        wide = self.chosen if self.is_wide else self.chosen.unsqueeze(self.dim)

        def at_choice(x: Any) -> Any:
            return None if x is None else x.gather(self.dim, wide)

        data, exact, sigma, bound = (
            at_choice(x) for x in (source.data64, source.exact64, source.sigma64, source.bound64)
        )
        # A choice is made among rounded values.
        compared = data if self.is_ordered else data.sort(self.dim, descending=True).values
        made = [self.chosen, Value(compared, compared)]
        if not self.has_values:
            return made
        if not self.is_wide:
            data, exact, sigma, bound = (
                None if x is None else x.squeeze(self.dim) for x in (data, exact, sigma, bound)
            )
        return [Value(data, exact, sigma, bound), *made]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Write(Operation):
    """An operator that changes tensors in place. It has no results of its own.

    Attributes:
        written: which of the inputs it changes.
        narrows: of each of these, whether a wider value is written to it.
        dtypes: of each of these, what the code sees; None for integers and booleans.
    """

    written: tuple[int, ...]
    narrows: tuple[bool, ...]
    dtypes: tuple[torch.dtype | None, ...]

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        """Change the values in place."""
        targets = [inputs[i] for i in self.written]
        is_simulated = rounding.recipe is not None
        if is_simulated and (self.rounds or any(x.exact64 is not x.data64 for x in inputs)):
            self._part(alike)
        self.call(inputs, "data64", rounding)
        if not self.rounds and all(x.exact64 is not x.data64 for x in targets):
            self.call(inputs, "exact64", rounding)
        for group in alike:
            for value in group:
                value.sigma64 = value.bound64 = None
        if self.rounds:
            # What it was before its last rounding is what it was computed to.
            for target in targets:
                if target.exact64 is not target.data64:
                    target.exact64.copy_(target.data64)
        if not is_simulated:
            return []
        assert rounding.recipe is not None
        for target, group, narrows, dtype in zip(targets, alike, self.narrows, self.dtypes, strict=True):
            if dtype is None:
                continue
            is_rounded = narrows and rounding.recipe.inner == "storage"
            if is_rounded:
                self._part([group])
            if is_rounded or self.rounds:
                target.data64.copy_(rounding.round(target.data64, dtype, self.position))
        return []

    def _part(self, alike: Sequence[Sequence[Held]]) -> None:
        """Give what is written to exact values of its own, which the operator will make differ."""
        for group, dtype in zip(alike, self.dtypes, strict=False):
            if dtype is None or any(value.exact64 is not value.data64 for value in group):
                continue
            storage = group[0].data64.untyped_storage().clone()
            for value in group:
                value.exact64 = view_of_storage(value.data64, storage)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Become(Operation):
    """A tensor takes the values of another one: what a child did to what it was given."""

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        """Copy the values over."""
        target, source = inputs
        target.data64.copy_(source.data64)
        if target.exact64 is not target.data64:
            target.exact64.copy_(source.exact64)
        return []


def is_floating(value: Any) -> bool:
    """Tell whether something is a real or complex floating tensor."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def view_of_storage(like: Tensor, storage: torch.UntypedStorage) -> Tensor:
    """Return the tensor that stands in `storage` where `like` stands in its own."""
    return like.new_empty(0).set_(storage, like.storage_offset(), like.size(), like.stride())
