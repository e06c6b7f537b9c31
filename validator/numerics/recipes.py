"""Recipes: what rounding a device may do inside an operator.

A recipe says nothing of the last rounding of a result to its storage format: that half ulp is
always allowed.
"""

from dataclasses import dataclass

__all__ = ["EAGER", "FUSED", "RECIPES", "Recipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a candidate may round, and to which format.

    Attributes:
        name: how findings call it.
        inner: format of the intermediate results between operators, by torch's name, or `"storage"`:
            each operator then rounds to the format that it has when the reference's own code runs in
            the candidate's dtype.
        accumulate: format in which matrix products accumulate, `"float32"` or `"float64"`. Bands are those of
            float32 for both; a narrower accumulator has no band yet, so it can't be declared.
        reduce: format in which partial results are summed across ranks, or `"storage"`.
    """

    name: str
    inner: str = "float32"
    accumulate: str = "float32"
    reduce: str = "storage"

    def __post_init__(self) -> None:
        floats = ("float64", "float32", "float16", "bfloat16")
        for field_name, legal in (
            ("inner", (*floats, "storage")),
            ("accumulate", ("float64", "float32")),
            ("reduce", (*floats, "storage")),
        ):
            value = getattr(self, field_name)
            if value not in legal:
                raise ValueError(f"Recipe.{field_name} is {value!r}; legal are {', '.join(map(repr, legal))}")


FUSED = Recipe(name="fused")
EAGER = Recipe(name="eager", inner="storage")
RECIPES = {recipe.name: recipe for recipe in (FUSED, EAGER)}
