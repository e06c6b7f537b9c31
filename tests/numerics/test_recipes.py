import dataclasses

import pytest

from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe


def test_recipes_are_known_by_name_strictest_first() -> None:
    assert list(RECIPES) == ["fused", "eager"]
    assert RECIPES["fused"] is FUSED
    assert RECIPES["eager"] is EAGER


def test_fused_keeps_float32_between_operators_and_eager_the_codes_own_formats() -> None:
    assert (FUSED.inner, FUSED.accumulate, FUSED.reduce) == ("float32", "float32", "storage")
    assert Recipe(name="eager", inner="storage") == EAGER


@pytest.mark.parametrize("field", ["inner", "accumulate", "reduce"])
def test_a_format_that_is_not_known_is_refused_with_its_value_and_what_is_legal(field: str) -> None:
    with pytest.raises(ValueError, match=rf"Recipe\.{field} is 'fp8'; legal are 'float64', 'float32'"):
        Recipe(name="mine", **{field: "fp8"})


def test_products_can_not_accumulate_in_storage() -> None:
    with pytest.raises(ValueError, match=r"Recipe\.accumulate is 'storage'"):
        Recipe(name="mine", accumulate="storage")


def test_an_accumulator_that_bands_do_not_know_can_not_be_declared() -> None:
    with pytest.raises(ValueError, match=r"Recipe\.accumulate is 'bfloat16'; legal are 'float64', 'float32'"):
        Recipe(name="mine", accumulate="bfloat16")


def test_a_recipe_is_a_value() -> None:
    assert Recipe(name="fused") == FUSED
    assert len({FUSED, Recipe(name="fused"), EAGER}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        FUSED.inner = "float64"  # type: ignore[misc]
