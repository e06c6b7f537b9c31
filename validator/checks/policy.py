"""What rounding a run's checks allow."""

from dataclasses import dataclass, replace

from validator.numerics.recipes import Recipe

__all__ = ["Policy", "is_alike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What rounding is allowed.

    Attributes:
        allowed: recipes, strictest first; explained by one of them is aligned.
        others: recipes tried after them; explained by one of them is undeclared precision.
    """

    allowed: tuple[Recipe, ...]
    others: tuple[Recipe, ...] = ()

    def __post_init__(self) -> None:
        if not self.allowed:
            raise ValueError("Policy.allowed is empty; at least one recipe must be allowed")


def is_alike(recipe: Recipe, other: Recipe) -> bool:
    """Tell whether two recipes allow the same inside of a single operator."""
    return replace(recipe, name=other.name, inner=other.inner, reduce=other.reduce) == other
