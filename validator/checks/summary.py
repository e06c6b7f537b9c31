"""One sentence for a finding."""

from collections.abc import Mapping
from typing import Any

from validator.checks.findings import Arm, Check, Evidence, Signature
from validator.checks.signatures import signature_words
from validator.checks.where_words import places
from validator.digits import ratio
from validator.numerics.recipes import RECIPES, Recipe

__all__ = ["summarise"]


def summarise(
    *,
    module: str,
    check: Check,
    into: str | None,
    path: str,
    rank: int | None,
    arm: Arm | None,
    recipe: Recipe | None,
    evidence: Evidence,
    signature: Signature | None,
    where: Mapping[str, Any],
    op: str | None = None,
    is_inside: bool = False,
) -> str:
    """Say in one sentence what is wrong where, and what it looks like."""
    name = module or "the model"
    subject = {
        Check.PARAMETER: f"{name}: parameter {path}",
        Check.INPUT: f"{name}: input {path}",
        Check.PARTIAL: f"{name}: the partial result",
    }.get(check, f"{name}: what goes into {into}" if into is not None else f"{name}: the output")
    on_rank = "" if rank is None else f" on rank {rank}"
    share = f"{evidence.outside} of {evidence.elements} elements"
    if recipe is not None and _is_of_cache(recipe):
        return (
            f"{subject}{on_rank} is explained by attention that reads {_cache(recipe)}, which was not "
            f"declared (declare it by recipe = {recipe.declaration})"
        )
    if recipe is not None:
        by = f"the recipe {recipe.name!r} alone{'' if op is None else f' (in {op})'}"
        return f"{subject}{on_rank} is explained by {by}, which was not declared"
    if arm is Arm.EXACT:
        what = (
            f"differs in {share}, and nothing is computed there"
            if check is not Check.PARAMETER
            else (f"differs in {share}")
        )
    elif arm is Arm.CLASS:
        what = (
            f"has NaN, infinity or saturation where the oracle has none, or the other way round, in {share}"
        )
    elif arm is Arm.GAIN and signature is not None and signature.kind == "constant":
        what = f"moves as if a constant of its code were another (z = {evidence.z or 0.0:.0f})"
    elif arm is Arm.GAIN:
        what = (
            f"is systematically off by {evidence.gain or 0.0:.2g} of its value "
            f"(z = {evidence.z or 0.0:.0f}), "
            "too little for any single element to show"
        )
    else:
        times = ratio(evidence.max_over_band or 0.0)
        what = f"is outside what rounding explains in {share} (at worst {times} times the band)"
    spots = "" if arm is Arm.GAIN else places(where)
    inside = f"; {op} is the first operator inside that is wrong" if op is not None and is_inside else ""
    hint = "" if signature is None else f"; looks like {signature_words(signature)}"
    return f"{subject}{on_rank} {what}{f', all in {spots}' if spots else ''}{inside}{hint}"


_SHARED = {
    "tensor": "a scale for all keys of a module, and one for all values",
    "head": "a scale for each head",
    "token": "a scale for each token",
    None: "a scale for each head of each token",
}


def _is_of_cache(recipe: Recipe) -> bool:
    """Tell whether it is the cache that a recipe allows beyond what was declared."""
    return recipe.name in RECIPES and RECIPES[recipe.name].cache != "storage"


def _cache(recipe: Recipe) -> str:
    scale = recipe.cache_scale
    if isinstance(scale, tuple):
        return f"a cache of {recipe.cache} codes"
    if isinstance(scale, float | int):
        return f"a cache of {recipe.cache} codes, at scale {scale:g}"
    return f"a cache of {recipe.cache} codes, with {_SHARED[scale]}"
