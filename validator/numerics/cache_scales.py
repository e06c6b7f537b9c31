"""What codes of a cache of keys and values are multiplied by when attention reads them, layer by layer."""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from validator.numerics.legality import refuse

__all__ = ["CacheScale", "demand_cache_scales"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScale:
    """What some modules multiply the codes of their cache by.

    Attributes:
        module: glob of the modules that attend, by their names in the reference.
        keys: what codes of keys are multiplied by; None where each head of each token has a scale of its own,
            its largest value over the largest code.
        values: the same of values.

    Raises:
        UsageError: a scale is no positive number.
    """

    module: str = "*"
    keys: float | None
    values: float | None

    def __post_init__(self) -> None:
        for name in ("keys", "values"):
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                refuse(self, name, value, "it must be a positive number, or None")

    def holds_for(self, module: str) -> bool:
        """Tell whether a module is one of those."""
        return fnmatchcase(module, self.module)


def demand_cache_scales(record: Any) -> None:
    """Refuse what is neither a positive number nor a tuple of `CacheScale`, or None.

    Raises:
        UsageError: of a record's `cache_scale`.
    """
    scales = record.cache_scale
    if isinstance(scales, tuple):
        if not scales or not all(isinstance(scale, CacheScale) for scale in scales):
            refuse(record, "cache_scale", scales, "a tuple must hold validator.CacheScale, one or more")
    elif scales is not None and not _is_positive(scales):
        refuse(
            record, "cache_scale", scales, "it must be a positive number, or a tuple of validator.CacheScale"
        )


def _is_positive(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < math.inf
