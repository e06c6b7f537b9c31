"""What happens to an operator's result: nothing in the oracle, noise and rounding under a simulated recipe.

- `Rounding.none()`: nothing. This is the oracle: casts and `dtype=` arguments change the label alone.
- `Rounding.stochastic(recipe)`: each operator adds the noise of its own inner arithmetic and rounds
  stochastically to the recipe's inner format (or, for `inner="storage"`, to the format that the
  operator's result has in this very code). The spread of such runs is the band's sigma.
- `Rounding.around(recipe)`: the same where nothing overflows, on request with larger noise.
- `Rounding.tilted(tilt)`: the oracle with what each softmax divides by a little off.
- `Rounding.nearest(recipe)`: rounds to nearest, without noise. This is the control of the gain test.

Shape legend: * = any shape.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from validator.numerics.bands import FLUSH, Noise
from validator.numerics.formats import format_of
from validator.numerics.recipes import FUSED, Recipe
from validator.numerics.rounding import round_nearest, round_stochastic

__all__ = ["Constant", "Rounding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number that the code gives to an operator that rounds, such as an epsilon or a scale.

    Attributes:
        position: which of the code's rounding operators it is given to.
        leaf: which of that operator's flattened arguments it is.
        op: aten name of the operator.
        value: the number.
    """

    position: int
    leaf: int
    op: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What happens to an operator's result, and to a constant.

    Attributes:
        recipe: the recipe that is simulated, or None for the oracle.
        generator: source of noise and of stochastic rounding; None rounds to nearest and adds no noise.
        noise_cache: noise of each operator of one piece of code by position, kept from run to run.
        altered: a constant of the code and the factor to multiply it by.
        overflows: whether noisy runs overflow; else what is too large for a format is not rounded to it.
        amplification: how many times as large as it is noise is made, where noisy runs don't overflow.
        tilt: in the oracle, relative error of what each softmax divides by.
        rows: in the oracle, the recipe of which a single operator's noise is wanted.
        elsewhere, positions: where given, `recipe` is that of the operators at these positions alone, and
            `elsewhere` that of all others.
    """

    recipe: Recipe | None = None
    generator: torch.Generator | None = None
    noise_cache: dict[int, Noise | None] = field(default_factory=dict)
    altered: tuple[Constant, float] | None = None
    overflows: bool = True
    amplification: float = 1.0
    tilt: float = 0.0
    rows: Recipe = FUSED
    elsewhere: Recipe | None = None
    positions: frozenset[int] | None = None

    @classmethod
    def none(cls, rows: Recipe = FUSED) -> Self:
        """Return the oracle's arithmetic: float64 and nothing else."""
        return cls(rows=rows)

    @classmethod
    def altering(cls, constant: Constant, factor: float) -> Self:
        """Return the oracle's arithmetic with one constant of the code multiplied by `factor`."""
        return cls(altered=(constant, factor))

    @classmethod
    def stochastic(cls, recipe: Recipe, seed: int, noise_cache: dict[int, Noise | None]) -> Self:
        """Return one noisy run under `recipe`."""
        return cls(recipe=recipe, generator=torch.Generator().manual_seed(seed), noise_cache=noise_cache)

    @classmethod
    def around(
        cls, recipe: Recipe, seed: int, noise_cache: dict[int, Noise | None], amplification: float = 1.0
    ) -> Self:
        """Return one noisy run around the oracle's finite values: those of a candidate that stays finite too.

        One that overflows is judged by the class of its values.

        Args:
            recipe: what is rounded.
            seed: of the noise.
            noise_cache: see the attribute.
            amplification: how many times too large all noise is, but for bounds on it.
        """
        noisy = cls.stochastic(recipe, seed, noise_cache)
        return replace(noisy, overflows=False, amplification=amplification)

    @classmethod
    def tilted(cls, tilt: float) -> Self:
        """Return the oracle's arithmetic with one relative error in what each softmax divides by."""
        return cls(tilt=tilt)

    @classmethod
    def nearest(
        cls, recipe: Recipe, *, elsewhere: Recipe | None = None, positions: frozenset[int] | None = None
    ) -> Self:
        """Return the control's arithmetic under `recipe`."""
        return cls(recipe=recipe, elsewhere=elsewhere, positions=positions)

    def recipe_at(self, position: int) -> Recipe | None:
        """Return the recipe of one of the code's rounding operators."""
        return self.recipe if self.positions is None or position in self.positions else self.elsewhere

    def round(self, value: Tensor, dtype: torch.dtype, position: int = 0) -> Tensor:
        """Round an intermediate result that the code holds in `dtype`."""
        recipe = self.recipe_at(position)
        assert recipe is not None
        if value.is_complex():
            parts = self.round(torch.view_as_real(value), dtype.to_real(), position)
            return torch.view_as_complex(parts)
        fmt = format_of(dtype)
        if recipe.inner != "storage":
            inner = format_of(recipe.inner)
            # Code that asks for a wider format than the recipe's gets it.
            fmt = inner if inner.precision >= fmt.precision else fmt
        operators = format_of(recipe.operators)
        if operators.precision < min(fmt.precision, format_of("float32").precision):
            fmt = operators
        if self.generator is None:
            rounded = round_nearest(value, fmt)
        else:
            rounded = round_stochastic(value, fmt, self.generator)
            if not self.overflows:
                further = rounded
                if self.amplification != 1.0:
                    further = value + self.amplification * (rounded - value)
                rounded = torch.where(rounded.isfinite(), further, value)
        if recipe.flush_subnormals and fmt.min_normal == FLUSH:
            rounded = torch.where(rounded.abs() < FLUSH, torch.zeros_like(rounded), rounded)
        return rounded

    def noisy(self, value: Tensor, noise: Noise) -> Tensor:
        """Add what arithmetic inside an operator may do to its result.

        A coherent error goes towards zero, as those of cut-off bits and of lost small terms do; it is of one
        size for the whole tensor, between nothing and its bound. Infinities stay: they have no noise.
        """
        assert self.generator is not None
        dtype = torch.complex64 if value.is_complex() else torch.float32
        sigma = self.amplification * noise.sigma
        noisy = value + sigma * torch.randn(value.shape, dtype=dtype, generator=self.generator)
        if isinstance(noise.bound, Tensor):
            share = torch.rand((), dtype=torch.float64, generator=self.generator)
            noisy = noisy - value.sign() * noise.bound * share
        return torch.where(noisy.isfinite(), noisy, value)
