"""Replays of one module's code: its operations again, on the same values, in other arithmetic.

Shape legend: * = the edge's shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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


AMPLIFICATION = 4.0
FAR_RUNS = 32
PURITY = 1.25
"""How far rounding carries code that is not linear within its noise: see `Replays.reach`."""

EXPONENTIAL = 2.0**-14
"""How good the exponentials of a kernel for 16-bit values need be, relatively.

Scores that are all equal have probabilities 1/n, which 16 bits hold exactly for n = 4, 8, 16, ...: there
torch's own attention on the CPU is off by 2^-14.5 in float16 and in bfloat16, which is what it divides by.
"""


_Asked = tuple[Recipe, Recipe | None, frozenset[int] | None, tuple[Constant, float] | None]


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
    _reaches: dict[Recipe, Mapping[Key, Tensor]] = field(default_factory=dict)
    _tilts: Mapping[Key, Tensor] | None = None
    _sensitivities: dict[Constant, Mapping[Key, Tensor]] = field(default_factory=dict)
    _rows: dict[Recipe, Mapping[Key, Noise]] = field(default_factory=dict)
    _controls: dict[_Asked, Mapping[Key, Tensor]] = field(default_factory=dict)

    def spread(self, recipe: Recipe, *, is_refined: bool = False) -> Mapping[Key, Spread]:
        """Run under stochastic rounding and once to nearest; empty if a run takes another path."""
        runs = REFINEMENT * self.runs if is_refined else self.runs
        if (recipe, runs) not in self._spreads:
            try:
                self._spreads[recipe, runs] = self._measure(recipe, runs)
            except Diverted:
                self._spreads[recipe, runs] = {}
        return self._spreads[recipe, runs]

    def reach(self, recipe: Recipe) -> Mapping[Key, Tensor]:
        """Return how far runs with amplified noise are from the oracle at most; empty if one diverts.

        A softmax whose scores are uncertain by more than 1 lets one key win or another: its output jumps.
        Where a jump is rare no stochastic run shows it, and sigma is nearly 0. Runs whose noise is A = 4
        times too large jump wherever a run with true noise has any chance to. Say that the code jumps where
        its noise exceeds z sigma. The candidate's, of 0.7 sigma for roundings to nearest, does with
        probability Phi(-z/0.7); R = 32 amplified runs all miss it with probability Phi(z/4)^R. The product
        is below 2e-8 at every z.

        Where the code is linear within its noise little is lost: the largest of 32 amplified errors is about
        2.4 A sigma, which with the factor below makes 12 sigma, where the band of a measured sigma has 9: an
        element needs to be 1.3 bands outside to show, where it is one of a few.

        Returns:
            `[*]` float64 by edge, `1.25 max |d|`: what wins in the amplified runs need not win as clearly
            there, nor be rounded alike. In a row of probabilities it is that of the row: too many keys may
            be near for each to win in some run. NaN counts as no distance.
        """
        if recipe not in self._reaches:
            try:
                self._reaches[recipe] = self._measure_reach(recipe)
            except Diverted:
                self._reaches[recipe] = {}
        return self._reaches[recipe]

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
        made = self._played(Rounding.altering(constant, factor))
        return {key: real_view(value.exact64) for key, value in made.items()}

    def spoilt(self, module: str, factor: float, recipe: Recipe | None = None) -> Mapping[Key, Tensor]:
        """Return the edges' values with a fault in a module inside; empty if that takes another path."""
        # Other noise than that of the runs behind sigma.
        noisy = None if recipe is None else Rounding.around(recipe, -1, {})
        made = self._played(noisy or Rounding.none(), (module, factor))
        return {key: real_view(value.exact64) for key, value in made.items()}

    def rows(self, recipe: Recipe) -> Mapping[Key, Noise]:
        """Return what a recipe allows inside of the operator behind each edge that has a single one."""
        if recipe not in self._rows:
            made = self._played(Rounding.none(recipe))
            self._rows[recipe] = {
                edge.key: _noise(made[edge.key])
                for edge in self.edges
                if edge.depth == 1 and edge.key in made
            }
        return self._rows[recipe]

    def control(
        self,
        recipe: Recipe,
        *,
        elsewhere: Recipe | None = None,
        positions: frozenset[int] | None = None,
        altered: tuple[Constant, float] | None = None,
    ) -> Mapping[Key, Tensor]:
        """Return the edges' values to nearest under a recipe; empty if that takes another path."""
        asked = recipe, elsewhere, positions, altered
        if asked not in self._controls:
            rounding = Rounding.nearest(recipe, elsewhere=elsewhere, positions=positions)
            made = self._played(replace(rounding, altered=altered))
            self._controls[asked] = {
                edge.key: round_nearest(real_view(made[edge.key].exact64), format_of(edge.cand.data.dtype))
                for edge in self.edges
                if edge.depth > 0 and edge.key in made and edge.cand.data.is_floating_point()
            }
        return self._controls[asked]

    def _played(self, rounding: Rounding, spoilt: tuple[str, float] | None = None) -> Mapping[Key, Value]:
        """Play the tape; empty if that takes another path."""
        try:
            return self.tape.play(rounding, spoilt)
        except Diverted:
            return {}

    def _measure(self, recipe: Recipe, runs: int) -> Mapping[Key, Spread]:
        exact = {edge.key: edge.exact for edge in self.edges if edge.depth > 1}
        exact |= {choice.key: choice.chosen for choice in self.choices}
        squares = {key: torch.zeros_like(value) for key, value in exact.items()}
        bounds: dict[Key, Tensor | None] = {}
        cache: dict[int, Noise | None] = {}
        for seed in range(runs):
            made = self.tape.play(Rounding.around(recipe, seed, cache))
            for key, value in exact.items():
                squares[key] += (real_view(made[key].exact64) - value).square()
                bounds[key] = made[key].bound64
        control = self.tape.play(Rounding.nearest(recipe))
        nearest = {key: real_view(value.exact64) for key, value in control.items()}
        formats = {edge.key: format_of(edge.cand.data.dtype) for edge in self.edges if edge.depth > 1}
        tilts = self._tilted({key: exact[key] for key, fmt in formats.items() if fmt.precision < 24})
        spreads = {}
        for key, value in exact.items():
            fmt, bound, tilt = formats.get(key), bounds[key], tilts.get(key)
            if tilt is not None:
                bound = tilt if bound is None else bound + tilt
            spreads[key] = Spread(
                sigma=shrunk_sigma(squares[key] / runs, ulp(value, fmt or format_of("float32")), runs),
                bound=bound,
                coherent=0.0 if tilt is None else _share(tilt, value),
                control=nearest[key] if fmt is None else round_nearest(nearest[key], fmt),
            )
        return spreads

    def _measure_reach(self, recipe: Recipe) -> Mapping[Key, Tensor]:
        exact = {edge.key: edge.exact for edge in self.edges if edge.depth > 1}
        furthest = {key: torch.zeros_like(value) for key, value in exact.items()}
        cache: dict[int, Noise | None] = {}
        for seed in range(FAR_RUNS):
            made = self.tape.play(Rounding.around(recipe, seed, cache, AMPLIFICATION))
            for key, value in exact.items():
                apart = (real_view(made[key].exact64) - value).abs().nan_to_num(nan=0.0)
                furthest[key] = torch.maximum(furthest[key], apart)
        return {key: PURITY * _shared_in_rows(exact[key], apart) for key, apart in furthest.items()}

    def _tilted(self, exact: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Return how far exponentials that are a little off carry each 16-bit edge that they are behind."""
        if self._tilts is None:
            self._tilts = {}
            if exact and self.tape.has_softmax:
                made = self.tape.play(Rounding.tilted(EXPONENTIAL))
                apart = {key: (real_view(made[key].exact64) - value).abs() for key, value in exact.items()}
                self._tilts = {key: x.nan_to_num(nan=0.0, posinf=0.0) for key, x in apart.items() if x.any()}
        return self._tilts


def _shared_in_rows(exact: Tensor, furthest: Tensor) -> Tensor:
    """Give rows of probabilities the largest distance in the row: where one key may win, any other may."""
    if not exact.dim():
        return furthest
    total = exact.sum(-1, keepdim=True)
    is_probability = (exact >= 0).all(-1, keepdim=True) & (total > 0) & (total <= 1 + 1e-6)
    return torch.where(is_probability, furthest.amax(-1, keepdim=True), furthest)


def _share(tilt: Tensor, value: Tensor) -> float:
    """Return the least-squares gain of a shared error; 0 for values that are all 0."""
    size = value.abs().nan_to_num(nan=0.0, posinf=0.0)
    return float((tilt * size).sum() / size.square().sum().clamp_min(torch.finfo(size.dtype).tiny))


def _noise(value: Value) -> Noise:
    sigma, bound = (0.0 if x is None else x for x in (value.sigma64, value.bound64))
    return Noise(sigma=sigma, bound=bound)
