"""What codes of a cache are multiplied by, for which module, and what is no scale."""

from typing import Any

import pytest

import validator
from validator.errors import UsageError
from validator.numerics.cache_scales import CacheScale
from validator.numerics.recipes import RECIPES, Recipe

FP8 = "float8_e4m3fn"
LAYER_0 = CacheScale(module="layers.0.attn", keys=0.5, values=0.25)
OTHERS = CacheScale(module="layers.*.attn", keys=None, values=2)


def test_the_first_scale_whose_glob_matches_a_module_is_taken() -> None:
    recipe = Recipe(name="mine", cache=FP8, cache_scale=(LAYER_0, OTHERS))
    assert recipe.cache_scale_of("layers.0.attn") is LAYER_0
    assert recipe.cache_scale_of("layers.1.attn") is OTHERS
    assert recipe.cache_scale_of("vision.0.attn") is None


def test_one_number_holds_for_all_modules_and_none_where_there_is_no_cache_of_codes() -> None:
    one = Recipe(name="mine", cache=FP8, cache_scale=0.5)
    assert one.cache_scale_of("layers.1.attn") == CacheScale(keys=0.5, values=0.5)
    by_head = Recipe(name="mine", cache="int8")
    assert by_head.cache_scale_of("layers.1.attn") == CacheScale(keys=None, values=None)
    assert Recipe(name="mine").cache_scale_of("layers.1.attn") is None
    shared = Recipe(name="mine", cache="int8", cache_scale="head")
    assert shared.cache_scale_of("layers.1.attn") == CacheScale(keys="head", values="head")


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (
            0.0,
            r"Recipe\(cache_scale='0.0'\): it must be a positive number, 'tensor', 'head', 'token', or a",
        ),
        (float("nan"), r"cache_scale='nan'\): it must be"),
        ([LAYER_0], r"Recipe\(cache_scale=.*\): it must be a positive number, .*, or a tuple"),
        ("row", r"cache_scale='row'\): it must be a positive number, 'tensor', 'head', 'token'"),
        ((), r"Recipe\(cache_scale='\(\)'\): a tuple must hold validator.CacheScale, one or more"),
        ((0.5, 0.25), r"Recipe\(cache_scale='\(0.5, 0.25\)'\): a tuple must hold validator.CacheScale"),
    ],
)
def test_what_is_no_scale_is_refused(scale: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe(name="mine", cache=FP8, cache_scale=scale)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), True, "0.5"])
def test_a_scale_that_is_no_positive_number_is_refused(value: Any) -> None:
    with pytest.raises(
        UsageError, match=r"CacheScale\(values=.*\): it must be a positive .*'token', or None"
    ):
        CacheScale(keys=1.0, values=value)


def test_scales_of_a_cache_that_holds_no_codes_are_refused() -> None:
    with pytest.raises(UsageError, match="nothing is read by it: give cache= as well"):
        Recipe(name="mine", cache_scale=(LAYER_0,))


def test_a_recipe_with_a_cache_says_how_it_is_declared() -> None:
    assert RECIPES["fp8-cache-by-head"].declaration == '"fp8-cache-by-head"'
    made = Recipe(name="mine", inner="storage", factors="tf32", cache="int8", cache_scale=(LAYER_0,))
    namespace = {"validator": validator}
    assert eval(made.declaration, namespace) == made
