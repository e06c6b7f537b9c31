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
        caches: recipes of other caches than the declared one, tried likewise: they say what attention reads.
    """

    allowed: tuple[Recipe, ...]
    others: tuple[Recipe, ...] = ()
    caches: tuple[Recipe, ...] = ()

    def __post_init__(self) -> None:
        if not self.allowed:
            raise ValueError("Policy.allowed is empty; at least one recipe must be allowed")


def is_alike(recipe: Recipe, other: Recipe) -> bool:
    """Tell whether two recipes allow the same inside of a single operator."""
    apart = {name: getattr(other, name) for name in ("name", "inner", "reduce", "cache", "cache_scale")}
    return replace(recipe, **apart) == other
