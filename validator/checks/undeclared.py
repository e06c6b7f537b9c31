"""Whether a looser recipe than declared is behind an edge that diverges, and which operator of it.

A looser recipe's band alone proves nothing: it is wide enough for many a fault. So the recipe must also
look like what happened. Its software model is run, and either comes out near to the candidate, or, where a
device may sum in another order than the model, it makes errors of the size, the spread and the direction
that the candidate's have. Where a constant of the code that is off, or a factor, explains the edge better,
it is a fault.

Shape legend: * = the edge's shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from validator.checks.arithmetic import Step
from validator.checks.judge import Band
from validator.checks.likeness import Elements
from validator.checks.module_code import ALTERATION, Code, CodeEdge, ReplaysOf
from validator.checks.roundings import Constant
from validator.checks.suspects import Suspect
from validator.numerics.contractions import FACTORS
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["Lineup", "Resemblance"]

NEAR = 0.25
"""A model that leaves up to this share of the candidate's squared error unexplained is what happened."""

BETTER = 0.5
"""A constant or a factor that leaves up to this share of what a recipe's model leaves is what happened."""

FITS = 5
"""Steps in which a constant is fitted: each may change it 8-fold."""

BLOCKS = (128, 32, 8)
"""Terms in a block of the models of sums whose order is not known, beside one sum of all terms."""

PARTS = (2, 3, 4, 8, 16, 32)
"""Numbers of partial sums that are modelled."""

DIFFERING = 0.2
"""A candidate that does as the control does differs from it in fewer elements: measured, up to 0.003."""

STEPS_TRIED = 6
"""How many operators of one piece of code may have been narrow while others were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """That a recipe's model looks like the candidate.

    Attributes:
        op: aten name of the operator that is narrower than declared.
        control: `[*]` the model, rounded to the candidate's format.
        left: share of the candidate's squared error that the model leaves unexplained; None where only the
            kind of the errors is the candidate's, and not their values.
    """

    op: str
    control: Tensor
    left: float | None


class Lineup:
    """A failing edge, to be compared with models of a recipe, and of faults.

    Args:
        code: that made the edge.
        edge: the edge.
        suspect: the recipe whose models it is to be compared with.
        band: under that recipe.
        allowed: the declared recipes.
        judged: `[*]` boolean, or None for all.
    """

    def __init__(
        self,
        code: Code,
        edge: CodeEdge,
        *,
        suspect: Suspect,
        band: Band,
        allowed: Sequence[Recipe],
        judged: Tensor | None,
    ) -> None:
        assert code.replays is not None
        self._replays: ReplaysOf = code.replays
        self._constants = code.constants
        self._edge = edge
        self._suspect = suspect
        self._allowed = allowed
        self._elements = Elements.of(edge, band=band, judged=judged)

    @cached_property
    def _controls(self) -> list[Tensor]:
        made = (self._control(recipe) for recipe in self._allowed)
        return [control for control in made if control is not None]

    @cached_property
    def _before(self) -> float:
        """The least error that a declared recipe leaves."""
        return min(map(self._elements.energy, self._controls), default=math.inf)

    @cached_property
    def _left_by_faults(self) -> float:
        """The least error that a factor on the edge, or a constant of the code that is off, leaves."""
        elements = self._elements
        factor = round_nearest((1 + elements.gain_of(elements.c)) * self._edge.exact, elements.fmt)
        return min(elements.energy(factor), *map(self._left_by, self._constants), math.inf)

    def resemblance(self) -> Resemblance | None:
        """Say whether the recipe's model looks like the candidate, and which operator's it is."""
        recipe, energy = self._suspect.recipe, self._elements.energy
        if not len(self._elements):
            return None
        made = [(variant, self._control(variant, steps=steps)) for variant, steps in self._variants()]
        models = [(variant, model) for variant, model in made if model is not None]
        near = min(models, key=lambda item: energy(item[1]), default=None)
        if near is not None and energy(near[1]) <= NEAR * self._before:
            return self._found(self._nearest(near[0]), near[1])
        for variant, _ in models if len(self._suspect.steps) > 1 else []:
            for elsewhere in self._allowed:
                some = self._some(variant, elsewhere)
                if some is not None:
                    return self._found(*some)
        if recipe.factors != "float32" or recipe.fp8:
            return None
        cuts = recipe.accumulator_bits is not None
        for variant, model in models:
            if self._elements.likeness(model, has_direction=cuts).is_close:
                # What is cut off makes a gain, which a factor explains as well.
                if not cuts and self._left_by_faults <= BETTER * self._before:
                    return None
                control = self._in_another_order(model) if cuts else model
                return Resemblance(op=self._loudest(variant), control=control, left=None)
        return None

    def hidden_sums(self, control: Tensor) -> Resemblance | None:
        """Say whether narrow sums are behind an edge that a declared recipe's band is wide enough for.

        Where scores are rounded, attention's band is wider than what partial sums of its output do; where
        what each expert returns is, it is wider than what adding them up does. A candidate that does as
        declared is mostly bit-identical with the control; one that is not may be any mixture of what is
        allowed. Only a model that is near says that it is none.

        Args:
            control: `[*]` the declared recipe's.
        """
        elements = self._elements
        if not (len(elements) and self._suspect.steps) or self.differing(control) < DIFFERING:
            return None
        recipe, last = self._suspect.recipe, self._suspect.steps[-1]
        is_split = recipe.partials != "float32"
        variants = [replace(recipe, split_k=parts) for parts in PARTS] if is_split else [recipe]
        for variant in variants:
            model = self._control(variant, elsewhere=self._allowed[-1], steps=[last])
            if model is not None and elements.energy(model) <= NEAR * self._before:
                return self._found(last.op, model)
        return None

    def differing(self, control: Tensor) -> float:
        """Return the share of elements in which the candidate differs from a control."""
        return float((control[self._elements.usable] != self._elements.c).double().mean())

    def _found(self, op: str, model: Tensor) -> Resemblance | None:
        """Return that a model is near, unless a fault is nearer."""
        left = self._elements.energy(model)
        if self._left_by_faults <= BETTER * left:
            return None
        return Resemblance(op=op, control=model, left=left / self._before if left else 0.0)

    def _variants(self) -> list[tuple[Recipe, Sequence[Step] | None]]:
        """Return the recipes that are modelled for one that leaves open how much of what it allows is done.

        Sums of products may be those of blocks or of some number of parts, an operator whose result is
        narrow may be wide inside, and a product of narrow factors may be narrow itself.

        Returns:
            Recipes, each with the operators that it is for, or None for all.
        """
        recipe = self._suspect.recipe
        if recipe.operators != "float32" and recipe.sums != "float32":
            return [(replace(recipe, sums="float32"), None), (recipe, None)]
        if FACTORS[recipe.factors].dtype is not None and recipe.factors != "float32":
            return [(recipe, None), (replace(recipe, operators=recipe.factors), self._suspect.steps)]
        if recipe.partials != "float32":
            return [(recipe, None), *((replace(recipe, split_k=parts), None) for parts in PARTS)]
        is_float32 = recipe.accumulate == "float32" and recipe.accumulator_bits is None
        if is_float32 or recipe.block is not None:
            return [(recipe, None)]
        return [(recipe, None), *((replace(recipe, block=block), None) for block in BLOCKS)]

    def _in_another_order(self, model: Tensor) -> Tensor:
        """Scale a model of a cut-off accumulator, which makes results too small, to the candidate's size."""
        elements = self._elements
        share = elements.gain_of(elements.c) / elements.gain_of(model[elements.usable])
        return self._edge.exact + (model - self._edge.exact) * share

    def _control(
        self,
        recipe: Recipe,
        *,
        elsewhere: Recipe | None = None,
        steps: Sequence[Step] | None = None,
        altered: tuple[Constant, float] | None = None,
    ) -> Tensor | None:
        positions = None if steps is None else frozenset(step.position for step in steps)
        elsewhere = elsewhere or self._allowed[-1]
        made = self._replays.control(recipe, elsewhere=elsewhere, positions=positions, altered=altered)
        return made.get(self._edge.key)

    def _left_by(self, constant: Constant) -> float:
        """Return the least error that a constant leaves which is multiplied by some positive factor."""
        elements, key = self._elements, self._edge.key
        logarithm, least = 0.0, math.inf
        for _ in range(FITS):
            factor = math.exp(logarithm)
            made = self._replays.altered(constant, factor).get(key)
            moved = self._replays.altered(constant, factor * (1 + ALTERATION)).get(key)
            if made is None or moved is None:
                break
            left = elements.c - made[elements.usable]
            direction = (moved - made)[elements.usable] / ALTERATION
            size = float((elements.weight * direction.square()).sum())
            step = float((elements.weight * direction * left).sum()) / size if size else math.nan
            if not math.isfinite(step):
                break
            logarithm += max(-math.log(8), min(math.log(8), step))
            for recipe in self._allowed:
                control = self._control(recipe, altered=(constant, math.exp(logarithm)))
                least = least if control is None else min(least, elements.energy(control))
        return least

    def _nearest(self, recipe: Recipe) -> str:
        """Return the operator that by itself explains most."""
        steps = self._suspect.steps
        if len({step.op for step in steps}) == 1:
            return steps[0].op
        energies = []
        for step in steps:
            made = self._control(recipe, steps=[step])
            energies.append(math.inf if made is None else self._elements.energy(made))
        return steps[energies.index(min(energies))].op

    def _some(self, recipe: Recipe, elsewhere: Recipe) -> tuple[str, Tensor] | None:
        """Look for a few operators that together explain the edge.

        Returns:
            Aten name of the one that explains most, and the model of all; None where no few do.
        """
        chosen: list[Step] = []
        energy = self._before
        for _ in range(STEPS_TRIED):
            tried: list[tuple[float, Step, Tensor]] = []
            for step in self._suspect.steps:
                if step not in chosen:
                    made = self._control(recipe, elsewhere=elsewhere, steps=[*chosen, step])
                    if made is not None:
                        tried.append((self._elements.energy(made), step, made))
            best = min(tried, key=lambda item: item[0], default=None)
            if best is None or best[0] > 0.9 * energy:
                return None
            energy = best[0]
            chosen.append(best[1])
            if energy <= NEAR * self._before:
                return chosen[0].op, best[2]
        return None

    def _loudest(self, recipe: Recipe) -> str:
        """Return the operator in which the recipe makes the largest difference."""
        steps = self._suspect.steps
        if len({step.op for step in steps}) == 1:
            return steps[0].op
        elements, base = self._elements, self._controls[-1]
        sizes = []
        for step in steps:
            made = self._control(recipe, steps=[step])
            moved = torch.zeros(()) if made is None else (made - base)[elements.usable]
            sizes.append(float((elements.weight * moved.square()).sum()))
        return steps[sizes.index(max(sizes))].op
