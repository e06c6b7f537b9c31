"""Noise that rounding carries through a whole model: the model's code, run again under stochastic rounding.

A check judges each operator on the candidate's own inputs. Where there is no model to run, only the sum of
all rounding before a tensor can be judged. It is measured here on the reference's side: the reference
runs once as it is, and then several times in the arithmetic of a candidate of another dtype; the root mean
square distance of these runs from the reference's own value is the noise of a tensor. A healthy candidate
is one more such run. So the error of the reference itself and the shift that rounding the weights makes
are in every distance, and no factor for the difference of two noisy runs comes in.

Shape legend: * = an edge's shape.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from validator.capturing.copies import local_part
from validator.capturing.formats_hdf5 import dtype_name
from validator.capturing.noise import Noise
from validator.capturing.scratch import Scratch
from validator.capturing.watch import Place, Watch
from validator.checks.arithmetic import Arithmetic
from validator.checks.cache_noise import AttentionLog, CachedRuns
from validator.checks.roundings import Rounding
from validator.checks.shadow import ShadowTensor, real_view, widened
from validator.errors import TargetError
from validator.numerics.formats import FORMATS, format_of
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest, round_stochastic
from validator.numerics.shrinkage import shrunk_sigma
from validator.numerics.ulp import ulp

__all__ = ["FEWEST_RUNS", "Propagation"]

FEWEST_RUNS = 8
"""With fewer the standard deviation of an element is too uncertain to judge by."""

_CAST = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Dtypes that a candidate of another dtype has in its own."""


@dataclass(slots=True, kw_only=True)
class _Measured:
    """What is known of one place so far.

    Attributes:
        shape: of the tensor, `[*]`; of a complex one that of its parts.
        value: slot of the reference's own value.
        distance: slot of the root of the sum of squared distances, float32; None for integers and booleans.
        runs: how many runs had this tensor.
        dtype: of a candidate's tensor here, once a run has shown it.
    """

    shape: torch.Size
    value: int
    distance: int | None
    runs: int = 0
    dtype: torch.dtype | None = None


class Propagation:
    """Measures the noise of every tensor of a model, when it is entered.

    Args:
        model: the reference, on the CPU. It is left as it was.
        run: feeds it; the same run each time.
        recipe: what the candidate may round.
        dtype: the candidate's, for parameters, buffers of the checkpoint and floating inputs; None for the
            reference's own.
        runs: how many stochastic runs.
        keeps: says by module and number whether a call is of interest.
        folder: where values are kept that memory need not hold.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        run: Callable[[], Any],
        recipe: Recipe,
        dtype: torch.dtype | None,
        runs: int,
        keeps: Callable[[str, int], bool],
        folder: Path,
    ) -> None:
        self._choice: Place | None = None
        self._unknown: set[str] = set()
        self._model = model
        self._run = run
        self._recipe = recipe
        self._dtype = dtype
        self._runs = runs
        self._keeps = keeps
        self._lift = _Lift(model, dtype)
        self._scratch = Scratch(folder)
        self._places: dict[Place, _Measured] = {}
        self._cached = None if recipe.cache == "storage" else CachedRuns(model, recipe)

    def __enter__(self) -> Self:
        """Run the model.

        Raises:
            TargetError: it fails, or its code can't run in simulated arithmetic.
            CaptureError: the disk is full.
        """
        try:
            with torch.no_grad():
                with Watch(self._model, self._note):
                    self._run()
                if self._cached is not None:
                    self._learn(self._cached)
                for seed in range(self._runs):
                    self._noisy_run(seed)
        except BaseException:
            self._scratch.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what was kept on the disk."""
        self._scratch.close()

    @property
    def description(self) -> Noise:
        """How it was measured."""
        return Noise(
            runs=self._runs,
            recipe=self._recipe.name,
            dtype=None if self._dtype is None else dtype_name(self._dtype),
            choice=self._choice,
            unknown=tuple(sorted(self._unknown)),
        )

    def noise(self) -> Iterator[tuple[Place, Tensor]]:
        """Yield the standard deviation at each place, in execution order.

        It is `[*]` in the dtype that a candidate has there; infinite where rounding can carry the value
        anywhere, zeros for integers and booleans that no rounded value decides. There is none for a place
        that not all runs reach with one shape, nor behind an operator that is not known.
        """
        for place, measured in self._places.items():
            if measured.runs != self._runs or measured.dtype is None:
                continue
            if measured.distance is None:
                yield place, torch.zeros(measured.shape, dtype=measured.dtype)
            else:
                value = self._scratch.read(measured.value).to(torch.float64)
                distance = self._scratch.read(measured.distance).to(torch.float64)
                yield place, self._sigma(value, distance, measured.dtype).to(measured.dtype)

    def _sigma(self, value: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
        anywhere = distance.isinf()
        unit = ulp(value, format_of(dtype)).nan_to_num(nan=0.0, posinf=0.0)
        if unit.dim():
            # Noise that comes from elsewhere in the row does not shrink with the element's own value.
            unit = torch.hypot(unit, unit.square().mean(-1, keepdim=True).sqrt())
        variance = distance.masked_fill(anywhere, 0.0).square() / self._runs
        return shrunk_sigma(variance, unit, self._runs).masked_fill(anywhere, torch.inf)

    def _note(self, place: Place, leaf: Tensor) -> None:
        """Keep a value of the reference's own run."""
        local = local_part(leaf)
        if local is None or not self._keeps(place.module, place.call):
            return
        value = real_view(local)
        if value.is_floating_point() and dtype_name(value.dtype) not in FORMATS:
            return
        distance = None
        if value.is_floating_point():
            distance = self._scratch.append(torch.zeros(value.shape, dtype=torch.float32))
        self._places[place] = _Measured(
            shape=value.shape, value=self._scratch.append(value), distance=distance
        )

    def _learn(self, cached: CachedRuns) -> None:
        """Run once more, to find the attention that reads from a cache."""
        log = AttentionLog(cached)
        with self._simulated(), cached, Arithmetic(Rounding.none(), self._lift, log=log):
            self._run()
        self._lift.clear()
        cached.learn(log)

    def _noisy_run(self, seed: int) -> None:
        """Run once more, in the candidate's arithmetic."""
        rounding = Rounding.stochastic(self._recipe, seed, {})
        exchange = None if self._cached is None else self._cached.read_by
        arithmetic = Arithmetic(rounding, self._lift, exchange=exchange)

        def seen(place: Place, leaf: Tensor) -> Tensor | None:
            with arithmetic.suspended():
                stored = self._stored(place, leaf, rounding)
                self._compare(place, leaf if stored is None else stored, arithmetic)
            return stored

        def left() -> None:
            # Of a whole model these would take more memory than the model does.
            self._lift.clear()
            rounding.noise_cache.clear()

        with self._simulated(), self._cached or nullcontext(), Watch(self._model, seen, left), arithmetic:
            self._run()

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Leave the model's buffers as they were, and say what it means that it fails."""
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        try:
            yield
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise TargetError(
                "the reference's noise can't be measured, since its code does not run in simulated "
                f"arithmetic: {reason}. Capture it without noise, and use check with the model"
            ) from error
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)

    def _stored(self, place: Place, leaf: Tensor, rounding: Rounding) -> Tensor | None:
        """Return what a candidate has in the place of a value that it stores here, or None for the same."""
        is_input = not place.module and place.side == "inputs"
        if is_input and self._dtype is not None and leaf.dtype in _CAST:
            given = leaf.data64 if isinstance(leaf, ShadowTensor) else widened(leaf)
            return ShadowTensor(round_nearest(given, format_of(self._dtype)), self._dtype)
        if not isinstance(leaf, ShadowTensor) or self._recipe.inner == "storage" or leaf.is_complex():
            return None
        assert rounding.generator is not None
        value = round_stochastic(leaf.data64, format_of(leaf.dtype), rounding.generator)
        return ShadowTensor(value, leaf.dtype, depth=leaf.depth, unknown=leaf.unknown)

    def _compare(self, place: Place, leaf: Tensor, arithmetic: Arithmetic) -> None:
        """Add the distance of one run from the reference's own value."""
        measured = self._places.get(place)
        if measured is None:
            return
        if self._choice is None and arithmetic.has_chosen:
            self._choice = place
        unknown = leaf.unknown if isinstance(leaf, ShadowTensor) else ""
        if unknown:
            self._unknown.add(unknown)
        value = real_view(leaf.data64 if isinstance(leaf, ShadowTensor) else leaf)
        if unknown or value.shape != measured.shape or arithmetic.is_chosen(leaf):
            return
        expected = self._scratch.read(measured.value)
        if measured.distance is None:
            measured.runs += bool(torch.equal(value.cpu(), expected))
            measured.dtype = leaf.dtype
            return
        measured.runs += 1
        measured.dtype = leaf.dtype.to_real()
        apart = _distance(value.to(torch.float64), expected.to(torch.float64)).to(torch.float32)
        self._scratch.write(measured.distance, torch.hypot(self._scratch.read(measured.distance), apart))


class _Lift:
    """The candidate's parameters: the reference's, rounded once to its dtype, in float64.

    Buffers of the checkpoint come in the candidate's dtype, others are computed by its own code.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._rounded = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        self._lifted: dict[int, tuple[Tensor, torch.dtype]] = {}

    def __call__(self, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        if self._dtype is None or tensor.dtype not in _CAST or id(tensor) not in self._rounded:
            return widened(tensor), tensor.dtype
        if id(tensor) not in self._lifted:
            rounded = round_nearest(widened(tensor), format_of(self._dtype))
            self._lifted[id(tensor)] = rounded, self._dtype
        return self._lifted[id(tensor)]

    def clear(self) -> None:
        """Forget the float64 copies."""
        self._lifted.clear()


def _distance(value: Tensor, expected: Tensor) -> Tensor:
    """Return `|value - expected|`: 0 between two NaN or equal infinities, infinite between others."""
    apart = (value - expected).abs()
    apart[(value == expected) | (value.isnan() & expected.isnan())] = 0.0
    return apart.nan_to_num(nan=torch.inf, posinf=torch.inf)
