"""Objects that are handed over from call to call, such as caches: which one it is, and how long it is."""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import nn

__all__ = ["ObjectNumbers"]


class ObjectNumbers:
    """Numbers objects in the order in which they are first seen; one object keeps its number."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._count = 0

    def describe(self, leaf: Any) -> Mapping[str, Any] | None:
        """Return what a capture holds of an object.

        Args:
            leaf: an argument that is no tensor and no plain value.

        Returns:
            `object` (the name of its class), `number`, and `length` (in tokens, or None where it says
            nothing); None for classes, functions, modules, and what can't be told from what follows it.
        """
        if callable(leaf) or isinstance(leaf, nn.Module):
            return None
        try:
            ref = weakref.ref(leaf)
        except TypeError:
            return None
        known = self._known.get(id(leaf))
        # What died may have left its id to another.
        if known is None or known[0]() is not leaf:
            known = self._known[id(leaf)] = (ref, self._count)
            self._count += 1
        kind = type(leaf)
        return {
            "object": f"{kind.__module__}.{kind.__qualname__}",
            "number": known[1],
            "length": _length(leaf),
        }


def _length(leaf: Any) -> int | None:
    """Return how many tokens a cache holds; None for what does not say so."""
    measure = getattr(leaf, "get_seq_length", None)
    if measure is None:
        return None
    try:
        return int(measure())
    except Exception:  # another library's code, asked for a hint
        return None
