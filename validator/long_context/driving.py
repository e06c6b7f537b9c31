"""One run of a port through chunked prefill and decoding, and what was seen of it on the way.

Shape legend: T = tokens of the text, V = vocabulary, B = sequences (1), s = tokens of a call.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from validator.capturing.copies import local_part
from validator.errors import TargetError
from validator.long_context.across_ranks import from_all_ranks, is_alone
from validator.long_context.cache_layouts import token_dims
from validator.long_context.cache_views import LayerView, layer_views
from validator.long_context.calling import cache_argument, configured_cache, device_of, stepped
from validator.long_context.meters import Memory, Meter, hoards
from validator.long_context.schedules import Schedule
from validator.long_context.shares import Share, gathered, holders, modules_of
from validator.long_context.storages import sizes_of

__all__ = ["CacheWatch", "Drive", "LayerReading", "Reading", "drive"]

_READINGS = 16
"""How often memory and cache are read while tokens are decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReading:
    """What the cache of one layer showed.

    Attributes:
        kind: name of its class.
        seen, held, capacity, block: see `LayerView`.
        size_bytes: of all that it keeps.
        row_bytes: of one token's keys and values, from their shapes; None where it doesn't show them.
        row_values: how many numbers these are, without channels that are 0 for all tokens, as those are that
            pad a head to the size that a kernel takes.
        changed: the tokens, first and last, whose keys or values are others than at the reading before; None
            for none.
    """

    kind: str
    seen: int | None
    held: int | None
    capacity: int | None
    block: int
    size_bytes: int
    row_bytes: int | None
    row_values: int | None
    changed: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was seen after a call of the model.

    Attributes:
        fed: tokens so far.
        layers: of the cache; empty where nothing is known of it. None for those that another stage of a
            pipeline has, once `stages.placed` has numbered them.
        memory: of the process; None while the prompt is fed.
    """

    fed: int
    layers: tuple[LayerReading | None, ...]
    memory: Memory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A run.

    Attributes:
        schedule: in which pieces the text was fed.
        tokens: `[T]`, the text.
        logits: `[T, V]` in the candidate's dtype: what this rank returned, empty where that is nothing like
            it.
        readings: after each chunk, and after some decode steps.
        hoarded: bytes that modules kept in attributes when decoding had begun and at the end, by attribute.
        cache: name of the cache's class; None where the model was run without.
        ranks: those whose logits are the model's.
    """

    schedule: Schedule
    tokens: Tensor
    logits: Tensor
    readings: tuple[Reading, ...]
    hoarded: tuple[Mapping[str, int], Mapping[str, int]]
    cache: str | None
    ranks: tuple[int, ...] = (0,)


def drive(
    model: nn.Module, prompt: Tensor, schedule: Schedule, *, vocabulary: int | None = None, seed: int = 0
) -> Drive:
    """Feed a prompt in chunks, then decode; what is decoded is sampled from the model's own distribution.

    Args:
        model: this rank's candidate. It is asked for a cache, in its first call, unless it takes none: then
            all tokens are given, and drawn from the prompt.
        prompt: `[T]` int64; of the schedule's prompt or longer.
        schedule: the pieces.
        vocabulary: how many logits the reference has; None where this process is the only rank.
        seed: of the sampling.

    Raises:
        TargetError: the model fails, or returns no logits on any rank.
        MismatchError: the ranks' logits are not of the vocabulary, or which they are can't be told.
    """
    argument, device = cache_argument(model), device_of(model)
    if argument is None:
        schedule = Schedule(chunks=(schedule.total,), decoded=0)
    tokens = torch.empty(schedule.total, dtype=torch.int64)
    tokens[: schedule.prompt] = prompt[: schedule.prompt]
    generator = torch.Generator().manual_seed(seed)
    logits: Tensor | None = None
    ranks: tuple[int, ...] = ()
    watch = CacheWatch()
    cache = None if argument is None else configured_cache(model, schedule.total)
    dims = None
    readings = []
    before: dict[str, int] = {}
    every = max(schedule.decoded // _READINGS, 1)
    with ExitStack() as stack:
        meter: Meter | None = None
        for start, size in zip(schedule.starts, schedule.sizes, strict=True):
            stop = start + size
            if start >= schedule.prompt and meter is None:
                before, meter = hoards(model), stack.enter_context(Meter())
            given = tokens[None, start:stop].to(device)
            made, cache = stepped(model, given, cache=cache, argument=argument, fed=start)
            if not ranks:
                ranks = _agreed(made, vocabulary, model)
                dims = token_dims(model, argument, cache)
            if isinstance(made, Tensor):
                if logits is None:
                    logits = torch.empty(schedule.total, made.shape[-1], dtype=made.dtype)
                logits[start:stop] = made
            if stop >= schedule.prompt and stop < schedule.total:
                tokens[stop] = _sampled(
                    gathered(made[-1] if isinstance(made, Tensor) else None, ranks, vocabulary), generator
                )
            del made, given
            if argument is not None and (meter is None or (stop - schedule.prompt) % every == 0):
                views = layer_views(cache, dims) or ()
                kept = [tensor for view in views for tensor in view.tensors()]
                memory = None if meter is None else meter.read(kept, device)
                readings.append(Reading(fed=stop, layers=watch.read(views, fed=stop), memory=memory))
                del kept, views
    return Drive(
        schedule=schedule,
        tokens=tokens,
        logits=torch.empty(0, 0) if logits is None else logits,
        readings=tuple(readings),
        hoarded=(before, hoards(model)),
        cache=None if argument is None or cache is None else type(cache).__name__,
        ranks=ranks,
    )


def _agreed(made: Tensor | TargetError, vocabulary: int | None, model: nn.Module) -> tuple[int, ...]:
    """Return the ranks whose logits are the model's, the same on every rank."""
    if is_alone() or vocabulary is None:
        if isinstance(made, TargetError):
            raise made
        return (0,)
    mine: Share | TargetError = (
        made
        if isinstance(made, TargetError)
        else Share.of([made], vocabulary=vocabulary, modules=modules_of(model))
    )
    returned = from_all_ranks(mine)
    shares = {rank: share for rank, share in enumerate(returned) if isinstance(share, Share)}
    if isinstance(returned[0], TargetError) and not shares:
        raise returned[0]
    return holders(shares, vocabulary=vocabulary).ranks


class CacheWatch:
    """Reads the layers of a cache again and again, and sees which tokens changed since."""

    def __init__(self) -> None:
        # numpy's, so that what is kept here is no tensor that memory is searched for
        self._marks: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}

    def read(self, views: tuple[LayerView, ...], *, fed: int) -> tuple[LayerReading, ...]:
        """Read all layers of a cache that was given so many tokens, of which it holds the last."""
        return tuple(self._read(i, view, fed) for i, view in enumerate(views))

    def _read(self, number: int, view: LayerView, fed: int) -> LayerReading:
        rows = view.rows()
        row_bytes, row_values, changed = None, None, None
        if rows is not None and rows[0].shape[2]:
            row_bytes = sum(x[:, :, :1].numel() * x.element_size() for x in rows)
            row_values = sum(map(_row_values, rows))
            changed = self._changed(number, fed - rows[0].shape[2], _marks(rows))
        return LayerReading(
            kind=view.kind,
            seen=view.seen,
            held=view.held,
            capacity=view.capacity,
            block=view.block,
            size_bytes=sum(sizes_of(view.tensors()).values()),
            row_bytes=row_bytes,
            row_values=row_values,
            changed=changed,
        )

    def _changed(self, number: int, first: int, marks: np.ndarray[Any, Any]) -> tuple[int, int] | None:
        before = self._marks.get(number)
        self._marks[number] = (first, marks)
        if before is None:
            return None
        start, stop = max(first, before[0]), min(first + len(marks), before[0] + len(before[1]))
        if stop <= start:
            return None
        differs = np.flatnonzero(
            marks[start - first : stop - first] != before[1][start - before[0] : stop - before[0]]
        )
        return (int(differs[0]) + start, int(differs[-1]) + start) if len(differs) else None


def _row_values(rows: Tensor) -> int:
    """Return how many numbers a token takes of `[B, K, T, D]`, without channels that are 0 throughout."""
    local = local_part(rows)
    assert local is not None
    used = (local.float() != 0).flatten(0, 2).any(0)
    return local.shape[0] * local.shape[1] * int(used.sum())


def _marks(rows: tuple[Tensor, Tensor]) -> np.ndarray[Any, Any]:
    """Return `[T]` int64 that change when bits of a token's keys or values do."""
    total: Any = 0
    for factor, x in enumerate(rows):
        bits = local_part(x)
        assert bits is not None
        as_bytes = bits.transpose(1, 2).contiguous().view(torch.uint8)
        as_bytes = as_bytes.transpose(0, 1).flatten(1).to(torch.int64)
        weights = torch.arange(1, as_bytes.shape[1] + 1, device=as_bytes.device) * (2 * factor + 1)
        total = total + (as_bytes * weights).sum(1)
    marks: np.ndarray[Any, Any] = total.cpu().numpy().copy()
    return marks


def _sampled(logits: Tensor, generator: torch.Generator) -> int:
    """Draw a token from `[V]` logits, which all ranks have by now, as they have the generator."""
    noise = torch.rand(len(logits), generator=generator, dtype=torch.float64)
    return int((logits.double().nan_to_num() - noise.clamp(min=1e-300).log().neg().log()).argmax())
