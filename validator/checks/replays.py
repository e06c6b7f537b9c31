"""Replays of one module's code: its operations again, on the same values, in other arithmetic.

Shape legend: * = the edge's shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from validator.checks.module_code import ALTERATION, CodeChoice, CodeEdge, Key, Spread
from validator.checks.operations import Value
from validator.checks.roundings import Constant, Rounding
from validator.checks.shadow import real_view
from validator.checks.tape import Diverted, Tape
from validator.numerics.bands import Noise
from validator.numerics.formats import format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest
from validator.numerics.shrinkage import shrunk_sigma
from validator.numerics.ulp import ulp

__all__ = ["RUNS", "Replays"]

RUNS = 12
"""Stochastic runs behind a measured sigma: NUMERICS sections 4 and 10."""
REFINEMENT = 8
"""How many times more runs decide where a few elements are a little outside of the band.

With 12 runs the variance of an element that is noisier than its row can come out at a tenth of what it is,
once in 1e5 elements; with 96 runs at half, once in 1e7.
"""


@dataclass(slots=True, kw_only=True)
class Replays:
    """Runs a module's code again.

    Attributes:
        tape: of the code's first run.
        edges, choices: what that made.
        runs: stochastic runs behind a measured sigma.
    """

    tape: Tape
    edges: Sequence[CodeEdge]
    choices: Sequence[CodeChoice]
    runs: int
    _spreads: dict[tuple[Recipe, int], Mapping[Key, Spread]] = field(default_factory=dict)
    _sensitivities: dict[Constant, Mapping[Key, Tensor]] = field(default_factory=dict)

    def spread(self, recipe: Recipe, *, is_refined: bool = False) -> Mapping[Key, Spread]:
        """Run under stochastic rounding and once to nearest; empty if a run takes another path."""
        runs = REFINEMENT * self.runs if is_refined else self.runs
        if (recipe, runs) not in self._spreads:
            try:
                self._spreads[recipe, runs] = self._measure(recipe, runs)
            except Diverted:
                self._spreads[recipe, runs] = {}
        return self._spreads[recipe, runs]

    def sensitivity(self, constant: Constant) -> Mapping[Key, Tensor]:
        """Return `dy / d log(constant)` of every edge with more than one rounding behind it."""
        if constant not in self._sensitivities:
            made = self.altered(constant, 1 + ALTERATION)
            self._sensitivities[constant] = {
                edge.key: (made[edge.key] - edge.exact) / ALTERATION
                for edge in self.edges
                if edge.depth > 1 and edge.key in made
            }
        return self._sensitivities[constant]

    def altered(self, constant: Constant, factor: float) -> Mapping[Key, Tensor]:
        """Return the edges' values with a constant altered; empty if that takes another path."""
        try:
            made = self.tape.play(Rounding.altering(constant, factor))
        except Diverted:
            return {}
        return {key: real_view(value.exact64) for key, value in made.items()}

    def rows(self, recipe: Recipe) -> Mapping[Key, Noise]:
        """Return what a recipe allows inside of the operator behind each edge that has a single one."""
        try:
            made = self.tape.play(Rounding.none(recipe))
        except Diverted:
            return {}
        return {
            edge.key: _noise(made[edge.key]) for edge in self.edges if edge.depth == 1 and edge.key in made
        }

    def control(
        self, recipe: Recipe, *, elsewhere: Recipe | None = None, positions: frozenset[int] | None = None
    ) -> Mapping[Key, Tensor]:
        """Return the edges' values to nearest under a recipe; empty if that takes another path."""
        try:
            made = self.tape.play(Rounding.nearest(recipe, elsewhere=elsewhere, positions=positions))
        except Diverted:
            return {}
        return {
            edge.key: round_nearest(real_view(made[edge.key].exact64), format_of(edge.cand.data.dtype))
            for edge in self.edges
            if edge.depth > 0 and edge.key in made and edge.cand.data.is_floating_point()
        }

    def _measure(self, recipe: Recipe, runs: int) -> Mapping[Key, Spread]:
        exact = {edge.key: edge.exact for edge in self.edges if edge.depth > 1}
        exact |= {choice.key: choice.chosen for choice in self.choices}
        squares = {key: torch.zeros_like(value) for key, value in exact.items()}
        bounds: dict[Key, Tensor | None] = {}
        cache: dict[int, Noise | None] = {}
        for seed in range(runs):
            made = self.tape.play(Rounding.stochastic(recipe, seed, cache))
            for key, value in exact.items():
                squares[key] += (real_view(made[key].exact64) - value).square()
                bounds[key] = made[key].bound64
        control = self.tape.play(Rounding.nearest(recipe))
        nearest = {key: real_view(value.exact64) for key, value in control.items()}
        formats = {edge.key: format_of(edge.cand.data.dtype) for edge in self.edges if edge.depth > 1}
        spreads = {}
        for key, value in exact.items():
            fmt = formats.get(key)
            spreads[key] = Spread(
                sigma=shrunk_sigma(squares[key] / runs, ulp(value, fmt or format_of("float32")), runs),
                bound=bounds[key],
                control=nearest[key] if fmt is None else round_nearest(nearest[key], fmt),
            )
        return spreads


def _noise(value: Value) -> Noise:
    sigma, bound = (0.0 if x is None else x for x in (value.sigma64, value.bound64))
    return Noise(sigma=sigma, bound=bound)
