"""Positions at which something changes for a model: where an error begins is a hint at its cause."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from validator.long_context.contexts import Context
from validator.long_context.schedules import Schedule
from validator.numerics.formats import format_of

__all__ = ["Landmark", "hint", "landmarks", "nearest", "told"]

_REACH = 4
"""How many positions behind a landmark an error may begin: a key that is hardly attended to is not missed."""

_SMALLEST_BLOCK = 16
"""Of paged caches: the default of common serving engines, whose block sizes are this times powers of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmark:
    """A position at which something changes.

    Attributes:
        position: the first at which it does.
        what: names it, to be read after "behind".
        hint: what an error that begins there is likely to be.
        early: how many positions before it an error of it may begin.
    """

    position: int
    what: str
    hint: str
    early: int = 0


def landmarks(context: Context, schedule: Schedule, dtype: torch.dtype) -> tuple[Landmark, ...]:
    """Return the landmarks of a run, those that explain most first.

    Args:
        context: of the reference.
        schedule: in which pieces the text was fed.
        dtype: in which the candidate computes.
    """
    found = [
        Landmark(
            position=edge,
            what=f"the edge of the {window}" + (f", at {edge}" if window.is_chunked else ""),
            hint=f"keys at the {window.noun}'s edge: its mask, or what is evicted, is off by one or more",
            early=1,
        )
        for window in context.distinct
        for edge in window.edges(schedule.total)
    ]
    if context.trained is not None:
        found.append(
            Landmark(
                position=context.trained,
                what=f"the trained context length of {context.trained}",
                hint="positions beyond those trained on: how the rotary embedding is scaled there",
            )
        )
    for name in dict.fromkeys((str(dtype).removeprefix("torch."), "bfloat16", "float16")):
        precision = format_of(name).precision
        if 2**precision < schedule.total:
            found.append(
                Landmark(
                    position=2**precision,
                    what=f"2^{precision} = {2**precision}, up to which {name} holds every integer",
                    hint=f"positions in {name}: from here on neighbouring ones become the same",
                )
            )
    if schedule.decoded:
        found.append(
            Landmark(
                position=schedule.prompt,
                what=f"the first decode step, at {schedule.prompt}",
                hint="what decode steps read from the cache, or the kernel for single tokens",
            )
        )
    found += [
        Landmark(
            position=start,
            what=f"the start of a chunk of the prompt, at {start}",
            hint="what a chunk reads from the cache that chunks before it left, or its mask",
        )
        for start in schedule.starts[1 : len(schedule.chunks)]
    ]
    return tuple(found)


def nearest(position: int, marks: Sequence[Landmark]) -> tuple[Landmark, ...]:
    """Return the landmarks near which an error that begins at a position may have its cause."""
    near = [mark for mark in marks if mark.position - mark.early <= position <= mark.position + _REACH]
    block = next((b for b in (256, 128, 64, 32, _SMALLEST_BLOCK) if _behind(position, b) <= 1), None)
    if block is not None and position >= block:
        start = position - _behind(position, block)
        near.append(
            Landmark(
                position=start,
                what=f"a boundary of cache blocks of {block}, at {start}",
                hint="a block of the cache: evicted while in use, reused, or found through a wrong table",
            )
        )
    return tuple(near)


def told(position: int, marks: Sequence[Landmark]) -> str:
    """Return where an error begins: "at position 257, 1 behind 2^8 = 256, up to which ..."."""
    near = nearest(position, marks)
    if not near:
        return f"at position {position}, where nothing is known to change"
    behind = position - near[0].position
    place = "at" if behind == 0 else f"{behind} behind" if behind > 0 else f"{-behind} before"
    others = f", also near {' and '.join(mark.what for mark in near[1:])}" if near[1:] else ""
    return f"at position {position}, {place} {near[0].what}{others}"


def hint(position: int, marks: Sequence[Landmark]) -> str | None:
    """Return what an error that begins there is likely to be, or None."""
    return next((mark.hint for mark in nearest(position, marks)), None)


def _behind(position: int, block: int) -> int:
    return position % block
