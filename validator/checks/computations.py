"""Operations that round: each adds the noise of its own inner arithmetic, and rounds its result.

Shape legend: * = any shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.checks.aten_calls import listed
from validator.checks.attention import attention
from validator.checks.how import How
from validator.checks.operations import Held, Operation, Value, is_floating
from validator.checks.operator_noise import operator_noise
from validator.checks.roundings import Rounding
from validator.checks.simulation import simulated
from validator.numerics.bands import Noise

__all__ = ["Attend", "Compute"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compute(Operation):
    """An operator that rounds its result.

    Attributes:
        is_single: whether it is the first behind its result: the oracle then says what its noise is.
    """

    is_single: bool

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        """Compute the result, add the operator's own noise, and round it."""
        result = self.call(inputs, "data64", rounding)
        made = listed(result)
        noise = None
        if rounding.generator is not None or (rounding.recipe is None and self.is_single):
            noise = self._noise(inputs, result, rounding)
        elif rounding.recipe is not None:
            recipe = rounding.recipe_at(self.position)
            if recipe is not None and not recipe.computes_as_float32:
                args, kwargs = self.arguments(inputs, "data64", rounding)
                found = simulated(self.name, tuple(args), kwargs, recipe, self.fmt)
                made[0] = made[0] if found is None else found
        if rounding.tilt and self.is_softmax:
            made[0] = made[0] * (1 + rounding.tilt)
        for i, (x, dtype) in enumerate(zip(made, self.made, strict=False)):
            if is_floating(x):
                assert dtype is not None
                made[i] = _finished(x, dtype, rounding, self.position, noise if i == 0 else None)
        return made

    def _noise(self, inputs: Sequence[Held], result: Any, rounding: Rounding) -> Noise | None:
        cache = rounding.noise_cache
        if self.position not in cache:
            args, kwargs = self.arguments(inputs, "data64", rounding)
            how = How(recipe=rounding.recipe or rounding.rows, fmt=self.fmt)
            cache[self.position] = operator_noise(self.name, tuple(args), kwargs, result, how)
        return cache[self.position]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attend(Operation):
    """Scaled dot product attention as one operator."""

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        """Compute the output, with what its kernel may round inside."""
        computed = attention(
            **self.operands(inputs, rounding),
            storage=self.fmt,
            recipe=rounding.recipe_at(self.position),
            with_noise=rounding.generator is not None,
        )
        (dtype,) = self.made
        assert dtype is not None
        output, noise, bound = computed.output, computed.noise, computed.bound
        if rounding.tilt and self.is_softmax:
            output = output * (1 + rounding.tilt)
        return [_finished(output, dtype, rounding, self.position, noise, bound)]

    def operands(self, inputs: Sequence[Held], rounding: Rounding) -> dict[str, Any]:
        """Return what it attends with, by the kernel's own names."""
        return self.arguments(inputs, "data64", rounding)[1]


def _finished(
    value: Tensor,
    dtype: torch.dtype,
    rounding: Rounding,
    position: int,
    noise: Noise | None,
    bound: Tensor | None = None,
) -> Value:
    """Add an operator's own noise to its result, and round it; in the oracle keep what the noise would be."""
    if rounding.recipe is None:
        sigma = None if noise is None else torch.as_tensor(noise.sigma)
        if noise is not None and isinstance(noise.bound, Tensor):
            bound = noise.bound
        return Value(value, value, sigma, bound)
    if rounding.generator is not None and noise is not None:
        value = rounding.noisy(value, noise)
    return Value(rounding.round(value, dtype, position), value, None, bound)
