"""What arithmetic an operator computes with, as the rows of its noise are told."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from validator.numerics.bands import Noise
from validator.numerics.formats import FORMATS, Format
from validator.numerics.recipes import FUSED, Recipe

__all__ = ["How", "Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What arithmetic an operator computes with.

    Attributes:
        recipe: what may be rounded.
        fmt: storage format of the operands.
    """

    recipe: Recipe = FUSED
    fmt: Format = FORMATS["float32"]

    @property
    def u(self) -> float:
        """Unit roundoff of everything but products and sums."""
        return FORMATS[self.recipe.operators].unit_roundoff

    @property
    def u_of_sums(self) -> float:
        """Unit roundoff of operators that compute on a sum of theirs."""
        return max(self.u, self.sums.unit_roundoff)

    @property
    def sums(self) -> Format:
        """Format of sums other than products."""
        return FORMATS[self.recipe.sums]


Row = Callable[[Any, Any, Any, How], Noise]
"""From an operator's arguments, keyword arguments and result in float64 to the noise inside of it."""
