"""What the reference says at each position, in float64, and how far rounding carries a candidate from it.

The noise is that of controls: the reference's own code in the candidate's dtype, on all tokens at once,
several times, each time with what every module returns changed at random by up to one rounding. A healthy
candidate is one more such run, and rounds no more often; the cache, the chunks and the single steps are what
it has of its own. How errors travel through attention need not be known: they travel through the controls as
well. Simulating every operator would take minutes on a text of this length, and is done only where a recipe
is declared that allows more than the reference's own code does, or a cache of codes.

Shape legend: T = tokens, V = vocabulary.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.checks.arithmetic import Arithmetic
from validator.checks.roundings import Rounding
from validator.checks.shadow import ShadowTensor, widened
from validator.errors import MismatchError, TargetError
from validator.long_context.calling import device_of
from validator.long_context.masks import MASKED, masked_alike
from validator.numerics.formats import format_of
from validator.numerics.recipes import EAGER, Recipe
from validator.numerics.rounding import round_nearest
from validator.swapping.noise import noisy_runs
from validator.target_file import describe

__all__ = ["CONTROLS", "Band", "distance", "measured_band", "oracle_logits"]

CONTROLS = 4
"""Runs that the noise is measured by. One is not enough behind a router: a choice that flips in the candidate
and not in the control made 25 times its error in a healthy run, and 1.5 times that of four (measured)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What the reference says, and the noise around it.

    Attributes:
        logits: `[T, V]` float64, its weights rounded to the candidate's dtype.
        sigma: `[T]` float64, root mean square error of a position's logits in the controls.
        has_chosen: whether rounded values decide something on the way, as a router does: then single
            positions of healthy runs may part by much.
    """

    logits: Tensor
    sigma: Tensor
    has_chosen: bool


def measured_band(
    build: Callable[[], nn.Module],
    tokens: Tensor,
    *,
    dtype: torch.dtype,
    recipe: Recipe | None = None,
    controls: int = CONTROLS,
) -> Band:
    """Run the reference in float64, and as controls.

    Args:
        build: builds the reference, anew at each call.
        tokens: `[T]` int64.
        dtype: in which the candidate keeps its parameters.
        recipe: what the device may round, as it is declared; None for what is allowed undeclared.
        controls: how many.

    Raises:
        TargetError: the reference fails on so many tokens, or the recipe can't be simulated on its code.
    """
    reference = build()
    logits, has_chosen = oracle_logits(reference, tokens, dtype=dtype)
    if recipe is None or (EAGER.covers(recipe) and recipe.cache == "storage"):
        runs = _dithered_runs(_in_dtype(build(), dtype), tokens, dtype=dtype, runs=controls)
    else:
        runs = _simulated_runs(reference, tokens, dtype=dtype, recipe=recipe, runs=controls)
    total = torch.zeros(len(tokens), dtype=torch.float64)
    for run in runs:
        total += distance(run, logits).square()
    # What storing the logits does is in every run, where the controls by chance show none.
    real = logits.masked_fill(~(logits.abs() < MASKED), 0.0)
    storage = format_of(dtype).unit_roundoff * real.square().mean(-1).sqrt() / 3**0.5 / 2
    return Band(logits=logits, sigma=torch.maximum((total / controls).sqrt(), storage), has_chosen=has_chosen)


def oracle_logits(
    reference: nn.Module,
    tokens: Tensor,
    *,
    dtype: torch.dtype,
    altered: AbstractContextManager[None] | None = None,
) -> tuple[Tensor, bool]:
    """Run the reference in float64 on all tokens at once.

    Args:
        reference: the trusted model; it is left as it was.
        tokens: `[T]` int64.
        dtype: its parameters are rounded to it first.
        altered: what to change about the reference while it runs.

    Returns:
        `[T, V]` float64, and whether rounded values decided something.

    Raises:
        TargetError: the reference fails.
    """
    stored = _Stored(reference, dtype)
    with altered or nullcontext():
        arithmetic = Arithmetic(Rounding.none(), stored)
        with arithmetic:
            logits = _logits(reference, tokens)
        has_chosen = arithmetic.has_chosen
    values = logits.data64 if isinstance(logits, ShadowTensor) else widened(logits)
    return values[0].detach().cpu(), has_chosen


def distance(cand: Tensor, ref: Tensor) -> Tensor:
    """Return `[T]` root mean square differences of logits `[T, V]`; NaN where one side has a NaN.

    An entry that both sides mask counts as equal.
    """
    are_equal = (cand == ref) | masked_alike(cand, ref)
    return torch.where(are_equal, 0.0, cand - ref).square().mean(-1).sqrt()


class _Stored:
    """Gives parameters the values that a candidate of a dtype stores, in float64."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._parameters = {id(parameter) for parameter in model.parameters()}
        self._dtype = dtype

    def __call__(self, tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        value = widened(tensor)
        if id(tensor) not in self._parameters:
            return value, tensor.dtype
        # float64 holds no wider format, and the code must see the dtype that decides which branch it takes.
        return round_nearest(value, format_of(self._dtype)), self._dtype


def _simulated_runs(
    reference: nn.Module, tokens: Tensor, *, dtype: torch.dtype, recipe: Recipe, runs: int
) -> Iterator[Tensor]:
    """Yield `[T, V]` logits of runs in which each operator rounds at random as a recipe allows."""
    found = noisy_runs(reference, lambda: _logits(reference, tokens), recipe=recipe, dtype=dtype, runs=runs)
    if found is None:
        raise TargetError(
            f"the recipe {recipe.name!r} can't be simulated on the reference's code, so that how far it "
            "carries the logits is not known: declare fused or eager, which need no simulation, or none"
        )
    for run in found:
        yield run.values[0]


def _in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a model whose parameters are rounded to a dtype, and whose buffers are as they were."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_floating_point():
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(parameter.data.to(dtype), requires_grad=False)
                module._parameters[name] = made[id(parameter)]
    config: Any = getattr(model, "config", None)
    if config is not None and hasattr(config, "dtype"):
        config.dtype = dtype
    return model


def _dithered_runs(model: nn.Module, tokens: Tensor, *, dtype: torch.dtype, runs: int) -> Iterator[Tensor]:
    """Yield `[T, V]` float64 logits of runs whose modules' results are changed by up to one rounding."""
    for seed in range(runs):
        yield _dithered(model, tokens, dtype=dtype, seed=seed)


def _dithered(model: nn.Module, tokens: Tensor, *, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    unit = format_of(dtype).unit_roundoff

    def dither(module: nn.Module, args: Any, made: Any) -> Any:
        if not isinstance(made, Tensor) or not made.is_floating_point():
            return None
        factors = 1 + unit * (2 * torch.rand(made.shape, generator=generator, dtype=torch.float64) - 1)
        return (made.double() * factors.to(made.device)).to(made.dtype)

    inner = [module for module in model.modules() if not any(True for _ in module.children())]
    handles = [module.register_forward_hook(dither) for module in inner]
    try:
        return _logits(model, tokens)[0].double().cpu()
    finally:
        for handle in handles:
            handle.remove()


def _logits(model: nn.Module, tokens: Tensor) -> Tensor:
    given: dict[str, Any] = {"input_ids": tokens[None].to(device_of(model))}
    if "use_cache" in inspect.signature(model.forward).parameters:
        given["use_cache"] = False
    try:
        with torch.no_grad():
            made = model(**given)
    except Exception as error:  # the reference's code may raise anything
        raise TargetError(f"the reference fails on {len(tokens)} tokens: {describe(error)}") from error
    logits = made[0] if isinstance(made, tuple) else getattr(made, "logits", made)
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[1] != len(tokens):
        raise MismatchError(
            f"the reference returned no logits for each of {len(tokens)} tokens: there is nothing to compare"
        )
    return logits
