"""A port, run in long contexts on all of its ranks: what each of them saw.

Shape legend: T = tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from validator.errors import TargetError, UsageError
from validator.faults import parse
from validator.long_context.across_ranks import from_all_ranks
from validator.long_context.cache_layouts import token_dims
from validator.long_context.cache_views import layer_views
from validator.long_context.calling import cache_argument, device_of, ported
from validator.long_context.contexts import Context
from validator.long_context.driving import CacheWatch, Drive, drive
from validator.long_context.prefixes import SharedPrefix, share_prefix
from validator.long_context.prompts import long_prompt
from validator.long_context.schedules import across_the_window, whole_context
from validator.long_context.shares import Share, modules_of
from validator.numerics.formats import weights_dtype
from validator.numerics.recipes import Recipe, recipe_named
from validator.target import Target, load_target
from validator.testing.settings import NO_TARGET, Settings

__all__ = ["LongRun", "Seen", "Sizes", "joined", "reference_sizes", "see", "with_logits"]

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
            raise UsageError(NO_TARGET)
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
        share: what this rank's logits in all of these are; None where it returns nothing like logits.
    """

    dtype: torch.dtype
    argument: str | None
    whole: Drive
    across: Drive | None
    shared: SharedPrefix | None
    share: Share | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the reference shows of itself on two tokens.

    Attributes:
        vocabulary: how many logits it has.
        token_values: how many numbers a token takes in each layer of its cache; empty where it shows none.
    """

    vocabulary: int
    token_values: tuple[int | None, ...]


def see(rank: int, world_size: int, run: LongRun, context: Context, vocabulary: int) -> Seen:
    """Run this rank's candidate.

    Args:
        rank: this process's.
        world_size: of the process group.
        run: what to run.
        context: of the reference.
        vocabulary: how many logits it has.

    Raises:
        ValidatorError: the target fails, or can't be run so.
    """
    target = run.load()
    model = run.candidate(target)
    schedule = whole_context(context, is_long=run.is_long)
    edge = across_the_window(context, schedule)
    ids = target.inputs()
    prompt = long_prompt(ids, tokens=schedule.total, vocabulary=vocabulary)
    argument = _same_argument(model)
    whole = drive(model, prompt, schedule, vocabulary=vocabulary)
    across = None
    if edge is not None and argument is not None:
        across = drive(model, prompt, edge, vocabulary=vocabulary)
    shared = None
    if argument is not None and (context.limit is None or context.limit >= _PREFIX + _FOLLOWING):
        text = long_prompt(ids, tokens=_PREFIX + _FOLLOWING, vocabulary=vocabulary)
        shared = share_prefix(model, text, prefix=_PREFIX)
    seen = Seen(
        dtype=weights_dtype(model) or torch.float32,
        argument=argument,
        whole=whole,
        across=across,
        shared=shared,
        share=None,
    )
    if whole.logits.numel():
        seen = replace(seen, share=Share.of(_logits(seen), vocabulary=vocabulary, modules=modules_of(model)))
    # Another rank need send only what its cache and its memory were.
    return seen if rank in whole.ranks else with_logits(seen, [x[:0] for x in _logits(seen)])


def with_logits(seen: Seen, logits: Sequence[Tensor]) -> Seen:
    """Return what was seen with other logits, in the order in which `joined` gives them."""
    left = iter(logits)
    whole = replace(seen.whole, logits=next(left))
    across = None if seen.across is None else replace(seen.across, logits=next(left))
    shared = seen.shared
    if shared is not None:
        again, reused = (next(left), next(left)), (next(left), next(left))
        shared = replace(shared, again=again, reused=reused)
    return replace(seen, whole=whole, across=across, shared=shared)


def joined(seen: Sequence[Seen], vocabulary: int) -> list[Tensor]:
    """Return the logits of ranks side by side, without what pads the vocabulary, run by run."""
    return [torch.cat(parts, dim=-1)[..., :vocabulary] for parts in zip(*map(_logits, seen), strict=True)]


def _logits(seen: Seen) -> list[Tensor]:
    runs = [run.logits for run in (seen.whole, seen.across) if run is not None]
    return runs if seen.shared is None else [*runs, *seen.shared.again, *seen.shared.reused]


def _same_argument(model: nn.Module) -> str | None:
    """Return what all ranks call the cache: those that take none would be fed in other pieces."""
    argument = cache_argument(model)
    names = from_all_ranks(argument)
    other = next((rank for rank, name in enumerate(names) if name != names[0]), None)
    if other is not None:
        raise TargetError(
            f"the candidate's forward calls its cache {names[0]!r} on rank 0 and {names[other]!r} on "
            f"rank {other}: give each stage the same arguments, past_key_values or none"
        )
    return argument


def reference_sizes(reference: nn.Module) -> Sizes:
    """Ask a reference about two tokens.

    Raises:
        TargetError: it fails, or returns no logits.
    """
    tokens = torch.ones(1, 2, dtype=torch.int64, device=device_of(reference))
    logits, _ = ported(reference, tokens, cache=None, argument=None, side="reference")
    return Sizes(vocabulary=logits.shape[-1], token_values=_token_values(reference, tokens))


def _token_values(reference: nn.Module, tokens: Tensor) -> tuple[int | None, ...]:
    argument = cache_argument(reference)
    if argument is None:
        return ()
    try:
        _, cache = ported(reference, tokens, cache=None, argument=argument)
    except TargetError:
        return ()
    views = layer_views(cache, token_dims(reference, argument, cache)) or ()
    layers = CacheWatch().read(views, fed=tokens.shape[1])
    return tuple(layer.row_values for layer in layers)
