"""Recipes by name, what they refuse, and which of two allows more."""

import dataclasses
from typing import Any

import pytest

from validator.errors import UsageError
from validator.numerics.emulation import Emulation
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe


def test_recipes_are_known_by_name_strictest_first() -> None:
    names = list(RECIPES)
    assert names == [RECIPES[name].name for name in names]
    assert names[0] == "fused"
    assert RECIPES["fused"] is FUSED
    assert RECIPES["eager"] is EAGER
    wanted = ["eager", "tf32", "bf16-factors", "truncated-accumulator", "bf16-partials", "bf16-inside"]
    wanted += ["bf16-accumulate"]
    assert [name for name in names if name in wanted] == wanted


def test_fused_keeps_float32_between_operators_and_eager_the_codes_own_formats() -> None:
    assert (FUSED.inner, FUSED.accumulate, FUSED.reduce) == ("float32", "float32", "storage")
    assert Recipe(name="eager", inner="storage") == EAGER


def test_fields_of_matrix_products_have_the_names_of_emulation() -> None:
    shared = {"accumulate", "accumulator_bits", "block", "split_k", "partials", "reduce", "factors", "fp8"}
    shared |= {"flush_subnormals"}
    of_recipe, of_emulation = ({field.name for field in dataclasses.fields(x)} for x in (Recipe, Emulation))
    assert of_recipe & of_emulation == shared
    own = {"name", "inner", "operators", "sums", "weights", "requantised", "cache", "cache_scale"}
    assert of_recipe - of_emulation == own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "fp8"}, "Recipe(inner='fp8'): legal are float64, float32, float16, bfloat16, storage"),
        ({"reduce": "fp8"}, "Recipe(reduce='fp8'): legal are float64, float32, float16, bfloat16, storage"),
        ({"accumulate": "storage"}, "Recipe(accumulate='storage'): legal are float64, float32"),
        ({"factors": "fp8"}, "Recipe(factors='fp8'): legal are float32, tf32, float16, bfloat16"),
        ({"operators": "int8"}, "Recipe(operators='int8'): legal are float64, float32"),
        ({"sums": "storage"}, "Recipe(sums='storage'): legal are float64, float32"),
        ({"block": 0}, "Recipe(block=0): it must be 1 or more"),
        ({"split_k": 0}, "Recipe(split_k=0): it must be 1 or more"),
        ({"partials": "bfloat16"}, "Recipe(partials='bfloat16'): split_k is 1"),
        ({"accumulator_bits": 24}, "Recipe(accumulator_bits=24): float32 keeps 1 to 23"),
        ({"accumulate": "bfloat16", "accumulator_bits": 13}, "bfloat16 keeps 1 to 7"),
        ({"fp8": True, "factors": "tf32"}, "Recipe(fp8=True): it has its own factors and parts"),
    ],
)
def test_a_contradiction_is_refused_with_its_value_and_what_is_legal(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        Recipe(name="mine", **options)
    assert message in str(raised.value)


def test_a_recipe_is_a_value() -> None:
    assert Recipe(name="fused") == FUSED
    assert len({FUSED, Recipe(name="fused"), EAGER}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        FUSED.inner = "float64"  # type: ignore[misc]


def test_loosening_adds_what_the_other_allows_and_keeps_what_was_declared() -> None:
    declared = Recipe(name="mine", reduce="float32", block=64)
    loosened = declared.loosened(RECIPES["bf16-partials"])
    assert loosened == Recipe(
        name="mine", inner="storage", reduce="float32", block=64, split_k=8, partials="bfloat16"
    )
    assert declared.loosened(RECIPES["bf16-reduce"]).reduce == "bfloat16"
    assert EAGER.loosened(RECIPES["bf16-reduce"]) == EAGER
    narrow = Recipe(name="mine", accumulate="bfloat16", split_k=16)
    assert narrow.loosened(RECIPES["fp16-accumulate"]) == dataclasses.replace(narrow, inner="storage")
    assert narrow.loosened(RECIPES["bf16-partials"]).split_k == 16
    assert RECIPES["tf32"].loosened(RECIPES["fp8"]) == dataclasses.replace(RECIPES["fp8"], name="tf32")
    assert RECIPES["fp8"].loosened(RECIPES["bf16-partials"]) == RECIPES["fp8"]
    # An accumulator of 8 bits has no 13 to keep.
    assert narrow.loosened(RECIPES["truncated-accumulator"]).accumulator_bits is None


def test_every_known_recipe_covers_itself_and_all_but_those_about_ranks_cover_the_strictest() -> None:
    for recipe in RECIPES.values():
        assert recipe.covers(recipe)
        assert recipe.covers(FUSED) == (not recipe.name.endswith("-reduce"))
        assert FUSED.covers(recipe) == (recipe == FUSED or recipe.name.endswith("-reduce"))
        if recipe.inner == "storage":
            assert recipe.covers(EAGER)
    assert not Recipe(name="mine", accumulate="float64").covers(FUSED)
    assert not Recipe(name="mine", block=64).covers(FUSED)
