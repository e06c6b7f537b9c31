"""Operators of an attention that read keys and values as they come out of a quantised cache.

Shape legend: S = queries, T = keys, D = channels of a head, * = sequences and heads, or any shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from validator.checks.cache_codes import Sharing, from_cache
from validator.checks.computations import Attend, Compute
from validator.checks.operations import Held, Operation, Value
from validator.checks.roundings import Rounding
from validator.checks.tape import Diverted
from validator.numerics.cache_scales import CacheScale

__all__ = ["EVERYTHING", "Cache", "Part", "reading"]

EVERYTHING = torch.tensor(True)
"""All keys are read from the cache, by each query."""


class Part(Enum):
    """Which part of an attention an operator is."""

    WHOLE = "both products"
    SCORES = "queries and keys"
    SUMS = "probabilities and values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What is read from a cache.

    Attributes:
        fmt: of the codes of keys and values.
        scale: what they are multiplied by.
        is_read: `[S, T]` boolean, `[S, 1]` or one for all: which keys a query reads from it.
        sharing: how a scale is taken from values.
    """

    fmt: str
    scale: CacheScale
    is_read: Tensor
    sharing: Sharing

    @property
    def reads_everything(self) -> bool:
        """Whether each query reads all keys from it."""
        return self.is_read is EVERYTHING

    def read_by(self, queries: int, keys: int) -> Tensor:
        """Return `[S, T]` boolean, which of so many keys each of so many queries reads from it.

        Raises:
            Diverted: they are not the queries, or the keys, that this is known of: those of another sequence
                (cross-attention), or several heads' together.
        """
        size = queries, keys
        if any(own not in (1, wanted) for own, wanted in zip(self.is_read.shape, size, strict=False)):
            raise Diverted(f"attention of {queries} queries to {keys} keys, where steps have others")
        return self.is_read.expand(size)

    def read(
        self,
        x: Held,
        scale: float | str | None,
        dim: int,
        rounding: Rounding,
        dtype: torch.dtype,
        position: int,
    ) -> Value:
        """Return keys or values as they come out of it: dequantised to their own format."""
        try:
            values = from_cache(x.data64, self.fmt, scale, dim=dim, sharing=self.sharing)
        except ValueError as error:
            raise Diverted(str(error)) from error
        data = values if rounding.recipe is None else rounding.round(values, dtype, position)
        return Value(data, data)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scores(Compute):
    """The product of queries and keys `[*, D, T]`."""

    cache: Cache

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        queries, keys = inputs
        read = self.cache.read(keys, self.cache.scale.keys, -2, rounding, self.given[1], self.position)
        if self.cache.reads_everything:
            return Compute.run(self, (queries, read), rounding, alike)
        is_read = self.cache.read_by(queries.data64.shape[-2], keys.data64.shape[-1])
        (fresh,), (cached,) = (Compute.run(self, (queries, x), rounding, alike) for x in (keys, read))
        return [_chosen(is_read, cached, fresh)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sums(Compute):
    """The product of probabilities and values `[*, T, D]`."""

    cache: Cache

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        weights, values = inputs
        read = self.cache.read(values, self.cache.scale.values, -1, rounding, self.given[1], self.position)
        if self.cache.reads_everything:
            return Compute.run(self, (weights, read), rounding, alike)
        # One sum over the keys as they are and as they are cached, each query taking one of the two.
        is_read = self.cache.read_by(*weights.data64.shape[-2:])
        both = torch.cat([weights.data64.where(x, 0.0) for x in (~is_read, is_read)], -1)
        all_values = torch.cat((values.data64, read.data64), -2)
        return Compute.run(self, (Value(both, both), Value(all_values, all_values)), rounding, alike)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Attend(Attend):
    """Both products in one operator, with keys and values `[*, T, D]`."""

    cache: Cache

    def operands(self, inputs: Sequence[Held], rounding: Rounding) -> dict[str, Any]:
        named = Attend.operands(self, inputs, rounding)
        size, scale = (named["query"].shape[-2], named["key"].shape[-2]), self.cache.scale
        for name, factor, dtype in zip(
            ("key", "value"), (scale.keys, scale.values), self.given[1:3], strict=True
        ):
            held = Value(named[name], named[name])
            read = self.cache.read(held, factor, -1, rounding, dtype, self.position)
            named[name] = (
                read.data64 if self.cache.reads_everything else torch.cat((held.data64, read.data64), -2)
            )
        if self.cache.reads_everything:
            return named
        shown = named.get("attn_mask")
        if named.pop("is_causal", False):
            shown = torch.ones(size, dtype=torch.bool).tril()
        is_read = self.cache.read_by(*size)
        # Each key stands there twice, as it is and as it is cached, and a query sees one of the two.
        halves = [_hidden(shown, ~is_read), _hidden(shown, is_read)]
        named["attn_mask"] = torch.cat([x.expand(*x.shape[:-2], *size) for x in halves], -1)
        return named


_KINDS: dict[Part, Any] = {Part.WHOLE: _Attend, Part.SCORES: _Scores, Part.SUMS: _Sums}


def reading(operation: Operation, part: Part, cache: Cache) -> Operation:
    """Return an operator of an attention that reads from a cache.

    Args:
        operation: with keys, or values, as they are computed.
        part: of the attention.
        cache: what is read.
    """
    made: Operation = _KINDS[part](
        **{x.name: getattr(operation, x.name) for x in fields(operation)}, cache=cache
    )
    return made


def _chosen(is_first: Tensor, first: Value, second: Value) -> Value:
    """Return the one value where a condition holds, and the other elsewhere, with what is known of each."""

    def of(name: str) -> Tensor | None:
        both = getattr(first, name), getattr(second, name)
        if any(x is None for x in both):
            return None
        return torch.where(is_first, *both)

    data = torch.where(is_first, first.data64, second.data64)
    exact = torch.where(is_first, first.exact64, second.exact64)
    return Value(data, exact, of("sigma64"), of("bound64"))


def _hidden(mask: Tensor | None, shown: Tensor) -> Tensor:
    """Return a mask, boolean or additive, that shows those keys alone that another shows as well."""
    if mask is None:
        return shown
    return mask & shown if mask.dtype == torch.bool else mask.masked_fill(~shown, -torch.inf)
