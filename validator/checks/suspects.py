"""Which recipes that were not declared can make a difference to an edge, and in which operators."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from validator.checks.arithmetic import Step
from validator.checks.module_code import Code, CodeEdge
from validator.checks.operator_noise import SUMS
from validator.checks.operators import ATTENTION
from validator.checks.products import PRODUCTS
from validator.numerics.bands import FLUSH
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe

__all__ = ["ALL_REDUCE", "Suspect", "suspects"]

ALL_REDUCE = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A recipe that could be behind an edge.

    Attributes:
        recipe: that may be.
        steps: the operators that it lets round more than the declared recipes do, where its band is so wide
            that a model must agree.
        op: aten name, where it is known without a model.
    """

    recipe: Recipe
    steps: tuple[Step, ...] = ()
    op: str | None = None


def suspects(code: Code, edge: CodeEdge, others: Sequence[Recipe], declared: Recipe) -> list[Suspect]:
    """Return those of the undeclared recipes that can make a difference to an edge, in their order.

    Args:
        code: that made the edge.
        edge: the edge.
        others: the undeclared recipes.
        declared: the loosest declared recipe.
    """
    found = []
    cand = edge.cand.data.dtype
    dtypes = {cand, *(dtype for step in code.steps for dtype in (*step.given, step.made))}
    for recipe in others:
        narrow = {getattr(recipe, name) for name in ("operators", "sums", "partials", "accumulate")}
        narrow -= {getattr(declared, name) for name in ("operators", "sums", "partials", "accumulate")}
        narrow -= {"float64", "float32"}
        if any(getattr(torch, fmt) not in dtypes for fmt in narrow):
            continue
        if recipe.reduce != declared.reduce:
            is_reduced = edge.into is None and bool(code.call.partials)
            if is_reduced and recipe.reduce in ("storage", str(cand).removeprefix("torch.")):
                found.append(Suspect(recipe=recipe, op=ALL_REDUCE))
            continue
        steps = tuple(step for step in code.steps if _differs(step, recipe, declared))
        # Rounding to float32 inside leaves little room.
        is_narrow = bool(narrow) or not recipe.computes_as_float32
        is_inner = edge.depth > 1 and recipe.inner != declared.inner
        if (steps and is_narrow) or (steps and recipe.accumulate != declared.accumulate) or is_inner:
            found.append(Suspect(recipe=recipe, steps=steps if is_narrow else ()))
        elif recipe.flush_subnormals != declared.flush_subnormals and _has_subnormals(edge):
            found.append(Suspect(recipe=recipe))
    return found


def _has_subnormals(edge: CodeEdge) -> bool:
    is_subnormal = (edge.exact != 0) & (edge.exact.abs() < FLUSH)
    return format_of(edge.cand.data.dtype).min_normal == FLUSH and bool(is_subnormal.any())


def _differs(step: Step, recipe: Recipe, declared: Recipe) -> bool:
    """Tell whether a recipe lets an operator round more than another does."""
    names: list[str] = []
    if step.op in PRODUCTS or step.op == ATTENTION:
        names += ["accumulate", "accumulator_bits", "split_k", "partials"]
        names += ["factors"] if torch.float32 in step.given else []
        names += ["fp8"] if step.op in ("mm", "addmm") else []
    if step.op in SUMS or step.op == ATTENTION:
        names += ["sums", "operators"]
    if step.made == torch.float32:
        names += ["operators"]
    return any(getattr(recipe, name) != getattr(declared, name) for name in names)
