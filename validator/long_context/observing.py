"""A port, run in long contexts on all of its ranks: what each of them saw.

Shape legend: T = tokens.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn

from validator.errors import TargetError, UsageError
from validator.faults import parse
from validator.long_context.cache_layouts import token_dims
from validator.long_context.cache_views import layer_views
from validator.long_context.calling import cache_argument, device_of, ported
from validator.long_context.contexts import Context
from validator.long_context.driving import CacheWatch, Drive, drive
from validator.long_context.prefixes import SharedPrefix, share_prefix
from validator.long_context.prompts import long_prompt
from validator.long_context.schedules import across_the_window, whole_context
from validator.numerics.formats import weights_dtype
from validator.numerics.recipes import Recipe, recipe_named
from validator.target import Target, load_target
from validator.testing.settings import Settings

__all__ = ["LongRun", "Seen", "see", "token_values_of"]

_PREFIX = 48
"""Tokens of a shared prefix; two texts of 16 tokens follow it."""
_FOLLOWING = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """What to run.

    Attributes:
        source: the target's path.
        nproc: number of ranks.
        device, dtype, tp: options of the candidate.
        recipe: name of what the device may round; None for the target's own.
        is_long: whether to go up to the model's last position.
        plant: a fault to plant in the candidate first, as `validator.faults.parse` reads it.
    """

    source: str
    nproc: int = 1
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
    recipe: str | None = None
    is_long: bool = False
    plant: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the run that the settings of a test ask for.

        Raises:
            UsageError: they name no target.
        """
        if settings.target is None:
            raise UsageError("no target is named: give --validator-target FILE")
        return cls(
            source=settings.target,
            nproc=settings.nproc,
            device=settings.device,
            dtype=settings.dtype,
            tp=settings.tp,
            recipe=settings.recipe,
            is_long=settings.long,
        )

    def load(self) -> Target:
        """Load the target with this run's options."""
        return load_target(self.source, device=self.device, dtype=self.dtype, tp=self.tp)

    def declared(self, target: Target) -> Recipe | None:
        """Return what the device may round as it is declared, or None where nothing is."""
        return recipe_named(self.recipe) or target.recipe

    def candidate(self, target: Target) -> nn.Module:
        """Build this rank's candidate."""
        model = target.candidate()
        if self.plant is not None:
            parse(self.plant).plant(model)
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank saw.

    Attributes:
        dtype: that most of the candidate computes in.
        argument: what the candidate calls its cache; None where it takes none.
        whole: a prompt longer than any window in chunks, then decoding.
        across: decoding across the edge of the window; None where there is none, or `whole` has it.
        shared: two texts that share a prefix; None without a cache that can be copied, or room for them.
    """

    dtype: torch.dtype
    argument: str | None
    whole: Drive
    across: Drive | None
    shared: SharedPrefix | None


def see(rank: int, world_size: int, run: LongRun, context: Context) -> Seen:
    """Run this rank's candidate.

    Args:
        rank: this process's.
        world_size: of the process group.
        run: what to run.
        context: of the reference.

    Raises:
        ValidatorError: the target fails, or can't be run so.
    """
    target = run.load()
    model = run.candidate(target)
    schedule = whole_context(context, is_long=run.is_long)
    edge = across_the_window(context, schedule)
    ids = target.inputs()
    vocabulary = _vocabulary(model)
    prompt = long_prompt(ids, tokens=schedule.total, vocabulary=vocabulary)
    argument = cache_argument(model)
    whole = drive(model, prompt, schedule)
    across = None if edge is None or argument is None else drive(model, prompt, edge)
    shared = None
    if argument is not None and (context.limit is None or context.limit >= _PREFIX + _FOLLOWING):
        text = long_prompt(ids, tokens=_PREFIX + _FOLLOWING, vocabulary=vocabulary)
        shared = share_prefix(model, text, prefix=_PREFIX)
    dtype = weights_dtype(model) or torch.float32
    seen = Seen(dtype=dtype, argument=argument, whole=whole, across=across, shared=shared)
    return seen if rank == 0 else _without_logits(seen)


def _vocabulary(model: nn.Module) -> int | None:
    config: Any = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    size = getattr(config, "vocab_size", None)
    return size if isinstance(size, int) else None


def _without_logits(seen: Seen) -> Seen:
    """Return what another rank than the first need send: what its cache and its memory were."""

    def bare(run: Drive | None) -> Any:
        return None if run is None else replace(run, logits=run.logits[:0])

    return replace(seen, whole=bare(seen.whole), across=bare(seen.across))


def token_values_of(reference: nn.Module) -> tuple[int | None, ...]:
    """Return how many numbers a token takes in each layer of a model's cache; empty where it shows none."""
    argument = cache_argument(reference)
    if argument is None:
        return ()
    tokens = torch.ones(1, 2, dtype=torch.int64, device=device_of(reference))
    try:
        _, cache = ported(reference, tokens, cache=None, argument=argument)
    except TargetError:
        return ()
    views = layer_views(cache, token_dims(reference, argument, cache)) or ()
    layers = CacheWatch().read(views, fed=tokens.shape[1])
    return tuple(layer.row_values for layer in layers)
