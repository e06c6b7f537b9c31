"""A port, run in long contexts on all of its ranks: what each of them saw.

Shape legend: T = tokens.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from validator.errors import TargetError, UsageError
from validator.faults import parse
from validator.long_context.cache_views import layer_views
from validator.long_context.calling import cache_argument, device_of, ported
from validator.long_context.contexts import Context
from validator.long_context.driving import CacheWatch, Drive, drive
from validator.long_context.prefixes import SharedPrefix, share_prefix
from validator.long_context.schedules import across_the_window, whole_context
from validator.target import Target, load_target
from validator.testing.settings import Settings

__all__ = ["LongRun", "Seen", "dtype_of", "prompt_of", "see", "token_values_of"]

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
        is_long: whether to go up to the model's last position.
        plant: a fault to plant in the candidate first, as `validator.faults.parse` reads it.
    """

    source: str
    nproc: int = 1
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
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
            is_long=settings.long,
        )

    def load(self) -> Target:
        """Load the target with this run's options."""
        return load_target(self.source, device=self.device, dtype=self.dtype, tp=self.tp)

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
        dtype: of most of the candidate's parameters.
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
    prompt = prompt_of(ids, schedule.total, vocabulary=vocabulary, source=run.source)
    argument = cache_argument(model)
    whole = drive(model, prompt, schedule)
    across = None if edge is None or argument is None else drive(model, prompt, edge)
    shared = None
    if argument is not None and (context.limit is None or context.limit >= _PREFIX + _FOLLOWING):
        text = prompt_of(ids, _PREFIX + _FOLLOWING, vocabulary=vocabulary, source=run.source)
        shared = share_prefix(model, text, prefix=_PREFIX)
    seen = Seen(dtype=dtype_of(model), argument=argument, whole=whole, across=across, shared=shared)
    return seen if rank == 0 else _without_logits(seen)


def prompt_of(inputs: Mapping[str, Any], tokens: int, *, vocabulary: int | None, source: str) -> Tensor:
    """Return `[T]` int64: the target's own tokens end to end, then others drawn with a fixed seed.

    Args:
        inputs: the target's.
        tokens: how many are needed.
        vocabulary: how many there are to draw from; None to draw from the target's own tokens.
        source: the target, for a message.

    Raises:
        UsageError: the target feeds no token ids.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.is_floating_point() or not ids.numel():
        raise UsageError(
            f"inputs() of {source} gives no input_ids, and long contexts are made of its tokens: "
            'return {"input_ids": ...}'
        )
    mask = inputs.get("attention_mask")
    is_real = isinstance(mask, Tensor) and mask.shape == ids.shape
    own = (ids[mask.bool()] if is_real and mask is not None else ids.flatten()).cpu().to(torch.int64)
    generator = torch.Generator().manual_seed(0)
    if vocabulary is None:
        drawn = own[torch.randint(len(own), (tokens,), generator=generator)]
    else:
        drawn = torch.randint(vocabulary, (tokens,), generator=generator)
    return torch.cat((own, drawn))[:tokens]


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the floating dtype of most of a model's parameters; float32 where it has none."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


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
    try:
        _, cache = ported(
            reference,
            torch.ones(1, 2, dtype=torch.int64, device=device_of(reference)),
            cache=None,
            argument=argument,
        )
    except TargetError:
        return ()
    return tuple(layer.row_values for layer in CacheWatch().read(layer_views(cache) or ()))
