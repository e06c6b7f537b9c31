"""In which pieces a text is fed to a port: chunks of a prompt, then single tokens."""

from dataclasses import dataclass
from itertools import accumulate

from validator.long_context.contexts import Context

__all__ = ["Schedule", "across_the_window", "whole_context"]

_CHUNK, _LONG_CHUNK = 64, 512
_DECODED, _LONG_DECODED = 48, 256
_BEYOND = 32
"""How far a short run goes beyond a window, or beyond position 256."""

BFLOAT16_INTEGERS = 256
"""Up to here bfloat16 holds every integer: 2^8, its precision being 8 bits."""

_BEFORE_EDGE, _AFTER_EDGE = 8, 16
_NO_LIMIT = 4096
"""Positions of a model that names no limit of its own, in a long run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Pieces of a text.

    Attributes:
        chunks: how many tokens each piece of the prompt has.
        decoded: how many tokens follow one by one.
    """

    chunks: tuple[int, ...]
    decoded: int

    @property
    def prompt(self) -> int:
        """How many tokens the prompt has."""
        return sum(self.chunks)

    @property
    def total(self) -> int:
        """How many tokens the text has."""
        return self.prompt + self.decoded

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many tokens each call of the model gets."""
        return (*self.chunks, *[1] * self.decoded)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first position of each call."""
        return tuple(accumulate(self.sizes[:-1], initial=0))


def whole_context(context: Context, *, is_long: bool) -> Schedule:
    """Return a prompt longer than any window in chunks, then decoding.

    A long one ends at the model's last position. A short one crosses position 256 while it decodes, where
    the model has so many, and its prompt is longer than the smallest window.
    """
    decoded, chunk = (_LONG_DECODED, _LONG_CHUNK) if is_long else (_DECODED, _CHUNK)
    window = 0 if context.window is None else context.window.size
    total = BFLOAT16_INTEGERS + _BEYOND
    if window:
        total = max(total, window + _BEYOND + decoded)
    if is_long:
        total = context.limit or _NO_LIMIT
    total = min(total, context.limit or total)
    decoded = min(decoded, total // 2)
    # One call with more tokens than the window, where that leaves some for others.
    first = max(chunk, window + chunk // 2)
    return Schedule(chunks=_chunks(total - decoded, chunk, first), decoded=decoded)


def across_the_window(context: Context, covered: Schedule) -> Schedule | None:
    """Return a short prompt and decoding that crosses the edge of the smallest window.

    None where there is no window, or what is `covered` already crosses it so.
    """
    window = 0 if context.window is None else context.window.size
    if window < 2 or covered.prompt < window <= covered.total:
        return None
    prompt = max(window - _BEFORE_EDGE, window // 2, 1)
    total = min(window + _AFTER_EDGE, context.limit or window + _AFTER_EDGE)
    if total <= window:
        return None
    return Schedule(chunks=_chunks(prompt, _LONG_CHUNK, _LONG_CHUNK), decoded=total - prompt)


def _chunks(tokens: int, size: int, first: int) -> tuple[int, ...]:
    """Split a prompt into chunks, the last of which holds what is left."""
    sizes = [min(first, tokens)]
    while sum(sizes) < tokens:
        sizes.append(min(size, tokens - sum(sizes)))
    return tuple(sizes)
