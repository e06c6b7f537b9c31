"""Whether a looser recipe than declared is behind an edge that diverges, and which operator of it.

A looser recipe's band alone proves nothing: it is wide enough for many a fault. So the recipe must also
look like what happened. Its software model is run, and either comes out near to the candidate, or, where a
device may sum in another order than the model, it makes errors of the size, the spread and the direction
that the candidate's have.

Shape legend: * = the edge's shape; N = judged elements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from validator.checks.arithmetic import Step
from validator.checks.judge import GAIN_Z, Band
from validator.checks.module_code import Code, CodeEdge, ReplaysOf
from validator.checks.operator_noise import SUMS
from validator.checks.products import PRODUCTS
from validator.numerics.bands import FLUSH
from validator.numerics.formats import format_of
from validator.numerics.gain import normal_score
from validator.numerics.recipes import Recipe
from validator.numerics.ulp import ulp

__all__ = ["ALL_REDUCE", "Lineup", "Resemblance", "Suspect", "suspects"]

ALL_REDUCE = "all_reduce"
ATTENTION = "scaled_dot_product_attention"

NEAR = 0.25
"""A model that leaves up to this share of the candidate's squared error unexplained is what happened."""

SIZE = 3.0
"""How much larger or smaller than a model's the errors of a candidate may be that sums in another order.

The error of k terms grows with the root of the number of roundings in a row, of which blocks and trees make
fewer.
"""

UNEVEN = 4.0
"""How many times its median over channels (or rows) the mean square error of one may be."""

MINIMUM_ROWS = 16
"""Below so many values no mean can be told from noise."""

BLOCKS = (128, 32, 8)
"""Terms in a block of the models of sums whose order is not known, beside one sum of all terms."""

PARTS = (2, 3, 4, 8, 16, 32)
"""Numbers of partial sums that are modelled."""

DIFFERING = 0.2
"""A candidate that does as the control does differs from it in fewer elements: measured, 0.0003."""

STEPS_TRIED = 6
"""How many operators of one piece of code may have been narrow while others were not."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """That a recipe's model looks like the candidate.

    Attributes:
        op: aten name of the operator that is narrower than declared.
        control: `[*]` the model, rounded to the candidate's format.
        is_near: whether the model's own values are near the candidate's, and not just errors of their kind.
    """

    op: str
    control: Tensor
    is_near: bool


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
        names += ["tf32"] if torch.float32 in step.given else []
        names += ["fp8"] if step.op in ("mm", "addmm") else []
    if step.op in SUMS or step.op == ATTENTION:
        names += ["sums", "operators"]
    if step.made == torch.float32:
        names += ["operators"]
    return any(getattr(recipe, name) != getattr(declared, name) for name in names)


@dataclass(frozen=True, slots=True)
class _Elements:
    """The judged elements of an edge, flat: `[N]` float64, with the channel and row of each, `[N]` int64."""

    y: Tensor
    c: Tensor
    weight: Tensor
    channels: Tensor
    rows: Tensor

    def energy(self, of: Tensor) -> float:
        """Return the weighted squared error that a model leaves."""
        return float((self.weight * (self.c - of).square()).sum())


class Lineup:
    """A failing edge, to be compared with models of recipes.

    Args:
        code: that made the edge.
        edge: the edge.
        suspect: the recipe whose models it is to be compared with.
        band: under that recipe. Errors are measured by it: in units of an ulp the smallest values would count
            for more than all others.
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
        self._edge = edge
        self._suspect = suspect
        self._allowed = allowed
        cand = edge.cand.data.to(torch.float64)
        usable = edge.exact.isfinite() & cand.isfinite()
        self._usable = usable if judged is None else usable & judged
        sigma, bound = (
            torch.as_tensor(x, dtype=torch.float64).expand(cand.shape)[self._usable]
            for x in (band.sigma, band.bound)
        )
        y = edge.exact[self._usable]
        where = self._usable.nonzero()
        width = cand.shape[-1] if cand.dim() else 1
        self._elements = _Elements(
            y=y,
            c=cand[self._usable],
            weight=1
            / (ulp(y, format_of(edge.cand.data.dtype)).square() / 12 + sigma.square() + bound.square() / 12),
            channels=where[:, -1] if cand.dim() else torch.zeros(len(y), dtype=torch.int64),
            rows=_flat(where[:, :-1], cand.shape[:-1])
            if cand.dim()
            else torch.zeros(len(y), dtype=torch.int64),
        )
        self._width = width

    @cached_property
    def _controls(self) -> list[Tensor]:
        made = (self._control(recipe) for recipe in self._allowed)
        return [control for control in made if control is not None]

    @cached_property
    def _before(self) -> float:
        """The least error that a declared recipe leaves."""
        return min((self._energy(control) for control in self._controls), default=math.inf)

    def resemblance(self) -> Resemblance | None:
        """Say whether the recipe's model looks like the candidate, and which operator's it is."""
        recipe = self._suspect.recipe
        made = [(variant, self._control(variant)) for variant in _variants(recipe)]
        models = [(variant, model) for variant, model in made if model is not None]
        for variant, model in models:
            if self._energy(model) <= NEAR * self._before:
                return Resemblance(op=self._nearest(variant), control=model, is_near=True)
        for variant, _ in models if len(self._suspect.steps) > 1 else []:
            for elsewhere in self._allowed:
                some = self._some(variant, elsewhere)
                if some is not None:
                    return some
        if recipe.tf32 or recipe.fp8:
            return None
        for variant, model in models:
            if self._is_alike(model):
                control = model if recipe.accumulator_bits is None else self._in_another_order(model)
                return Resemblance(op=self._loudest(variant), control=control, is_near=False)
        return None

    def hidden_partials(self, control: Tensor) -> Resemblance | None:
        """Say whether partial sums are behind an edge that a declared recipe's band is wide enough for.

        Where scores are rounded, attention's band is wider than what partial sums of its output do. A
        candidate that does as declared is mostly bit-identical with the control; one that is not may be any
        mixture of what is allowed. Only a model that is near says that it is none.

        Args:
            control: `[*]` the declared recipe's.
        """
        if float((control[self._usable] != self._elements.c).double().mean()) < DIFFERING:
            return None
        recipe, last = self._suspect.recipe, self._suspect.steps[-1]
        for parts in PARTS:
            model = self._control(replace(recipe, split_k=parts), elsewhere=self._allowed[-1], steps=[last])
            if model is not None and self._energy(model) <= NEAR * self._before:
                return Resemblance(op=last.op, control=model, is_near=True)
        return None

    def _in_another_order(self, model: Tensor) -> Tensor:
        """Scale a model of a cut-off accumulator, which makes results too small, to the candidate's size."""
        share = self._slope(self._elements.c) / self._slope(model[self._usable])
        return self._edge.exact + (model - self._edge.exact) * share

    def _energy(self, model: Tensor) -> float:
        return self._elements.energy(model[self._usable])

    def _control(
        self, recipe: Recipe, *, elsewhere: Recipe | None = None, steps: Sequence[Step] | None = None
    ) -> Tensor | None:
        positions = None if steps is None else frozenset(step.position for step in steps)
        return self._replays.control(recipe, elsewhere=elsewhere, positions=positions).get(self._edge.key)

    def _nearest(self, recipe: Recipe) -> str:
        """Return the operator that by itself explains most."""
        steps = self._suspect.steps
        if len({step.op for step in steps}) == 1:
            return steps[0].op
        energies = []
        for step in steps:
            made = self._control(recipe, elsewhere=self._allowed[-1], steps=[step])
            energies.append(math.inf if made is None else self._energy(made))
        return steps[energies.index(min(energies))].op

    def _some(self, recipe: Recipe, elsewhere: Recipe) -> Resemblance | None:
        """Look for a few operators that together explain the edge; the one that explains most is named."""
        chosen: list[Step] = []
        energy = self._before
        for _ in range(STEPS_TRIED):
            tried: list[tuple[float, Step, Tensor]] = []
            for step in self._suspect.steps:
                if step not in chosen:
                    made = self._control(recipe, elsewhere=elsewhere, steps=[*chosen, step])
                    if made is not None:
                        tried.append((self._energy(made), step, made))
            best = min(tried, key=lambda item: item[0], default=None)
            if best is None or best[0] > 0.9 * energy:
                return None
            energy = best[0]
            chosen.append(best[1])
            if energy <= NEAR * self._before:
                return Resemblance(op=chosen[0].op, control=best[2], is_near=True)
        return None

    def _loudest(self, recipe: Recipe) -> str:
        """Return the operator in which the recipe makes the largest difference."""
        steps = self._suspect.steps
        if len({step.op for step in steps}) == 1:
            return steps[0].op
        base = self._controls[-1]
        sizes = []
        for step in steps:
            made = self._control(recipe, elsewhere=self._allowed[-1], steps=[step])
            size = 0.0 if made is None else self._size(made - base)
            sizes.append(size)
        return steps[sizes.index(max(sizes))].op

    def _size(self, deviation: Tensor) -> float:
        return float((self._elements.weight * deviation[self._usable].square()).sum())

    def _is_alike(self, model: Tensor) -> bool:
        """Tell whether the candidate's errors have the size, spread and direction of the model's."""
        elements = self._elements
        made = model[self._usable]
        own, modelled = (elements.weight * (x - elements.y).square() for x in (elements.c, made))
        for size in (Tensor.mean, Tensor.median):
            ratio = math.sqrt(float(size(own)) / max(float(size(modelled)), 1e-300))
            if not 1 / SIZE <= ratio <= SIZE:
                return False
        if self._suspect.recipe.accumulator_bits is not None:
            of_model, of_cand = self._slope(made), self._slope(elements.c)
            if of_model == 0 or not 1 / SIZE <= of_cand / of_model <= SIZE:
                return False
        elif self._has_steady_channels():
            return False
        return self._is_even(own / modelled.mean(), elements.channels) and self._is_even(
            own / modelled.mean(), elements.rows
        )

    def _slope(self, values: Tensor) -> float:
        """Return the gain of values on the oracle, less 1."""
        elements = self._elements
        total = float((elements.weight * elements.y.square()).sum())
        return float((elements.weight * (values - elements.y) * elements.y).sum()) / max(total, 1e-300)

    def _has_steady_channels(self) -> bool:
        """Tell whether a channel is off by the same in all rows, as rounding in another order never is."""
        elements = self._elements
        error = elements.weight.sqrt() * (elements.c - elements.y)
        count = torch.bincount(elements.channels, minlength=self._width).to(torch.float64)
        mean = torch.bincount(elements.channels, error, self._width) / count
        square = torch.bincount(elements.channels, error.square(), self._width) / count
        t = mean / torch.sqrt(((square - mean.square()) / (count - 1)).clamp_min(1e-300))
        enough = count >= MINIMUM_ROWS
        if not bool(enough.any()):
            return False
        z = normal_score(t[enough], count[enough] - 1)
        return bool((z.abs() > math.sqrt(GAIN_Z**2 + 2 * math.log(len(z)))).any())

    def _is_even(self, squares: Tensor, labels: Tensor) -> bool:
        """Tell whether no channel or row has much more error than the others."""
        dense = torch.unique(labels, return_inverse=True)[1]
        size = int(dense.max()) + 1
        count = torch.bincount(dense, minlength=size).to(torch.float64)
        mean = torch.bincount(dense, squares, size) / count
        limit = UNEVEN + 12 * math.sqrt(2 / float(count.median()))
        return float(mean.max()) <= limit * max(float(mean.median()), 1e-300)


def _variants(recipe: Recipe) -> list[Recipe]:
    """Return the recipes that are modelled for one that leaves open how much of what it allows is done.

    Sums of products may be those of blocks, and an operator whose result is narrow may be wide inside.
    """
    if recipe.operators != "float32" and recipe.sums != "float32":
        return [replace(recipe, sums="float32"), recipe]
    is_float32 = recipe.accumulate == "float32" and recipe.accumulator_bits is None
    if is_float32 or recipe.block is not None:
        return [recipe]
    return [recipe, *(replace(recipe, block=block) for block in BLOCKS)]


def _flat(indices: Tensor, shape: torch.Size) -> Tensor:
    flat = torch.zeros(len(indices), dtype=torch.int64)
    for dim, size in enumerate(shape):
        flat = flat * size + indices[:, dim]
    return flat
