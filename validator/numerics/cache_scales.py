"""What codes of a cache of keys and values are multiplied by when attention reads them, layer by layer."""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from validator.numerics.legality import refuse

__all__ = ["SHARED_BY", "CacheScale", "demand_cache_scales"]

SHARED_BY = ("tensor", "head", "token")
"""What may share a scale taken from its largest value: the keys of a module, of a head, or of a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScale:
    """What some modules multiply the codes of their cache by.

    Attributes:
        module: glob of the modules that attend, by their names in the reference.
        keys: what codes of keys are multiplied by: a number, or what has a scale of its own, which is its
            largest value over the largest code: `"tensor"` (one for all keys of a module, those of the first
            step or of each, of the batch or of each sequence), `"head"` (likewise), `"token"`, or None for
            each head of each token. Ranks that split the heads may take each its own, and scales may be kept
            in float32 or in the format of the keys.
        values: the same of values.

    Raises:
        UsageError: a scale is none of these.
    """

    module: str = "*"
    keys: float | str | None
    values: float | str | None

    def __post_init__(self) -> None:
        for name in ("keys", "values"):
            value = getattr(self, name)
            if value is not None and not _is_scale(value):
                refuse(self, name, value, f"it must be {_LEGAL}, or None")

    def holds_for(self, module: str) -> bool:
        """Tell whether a module is one of those."""
        return fnmatchcase(module, self.module)


def demand_cache_scales(record: Any) -> None:
    """Refuse what is neither a scale nor a tuple of `CacheScale`, or None.

    Raises:
        UsageError: of a record's `cache_scale`.
    """
    scales = record.cache_scale
    if isinstance(scales, tuple):
        if not scales or not all(isinstance(scale, CacheScale) for scale in scales):
            refuse(record, "cache_scale", scales, "a tuple must hold validator.CacheScale, one or more")
    elif scales is not None and not _is_scale(scales):
        refuse(record, "cache_scale", scales, f"it must be {_LEGAL}, or a tuple of validator.CacheScale")


_LEGAL = f"a positive number, {', '.join(map(repr, SHARED_BY))}"


def _is_scale(value: object) -> bool:
    if isinstance(value, str):
        return value in SHARED_BY
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < math.inf
