"""Attention that reads keys and values as they come out of a quantised cache.

The oracle computes all steps as one prefill, in which each key is as it was computed. Where a recipe says in
which format the cache holds them, the operations of the attention read them in that format, in the oracle, in
its noisy runs and in the control alike: what quantising does is part of what the code computes, and no noise.
So a wrong scale or a misread format shows as sharply as where nothing is quantised.

Shape legend: S = queries, T = keys, D = channels of a head, * = sequences and heads, or an edge's shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from validator.align.traces import Trace
from validator.checks.attention_sites import attention_operations
from validator.checks.computations import Attend, Compute
from validator.checks.module_code import Code
from validator.checks.operations import Held, Operation, Value
from validator.checks.replays import Replays
from validator.checks.roundings import Rounding
from validator.checks.shadow import real_view
from validator.checks.stepping import earlier_keys
from validator.checks.tape import Diverted
from validator.errors import UsageError
from validator.numerics.cache_scales import CacheScale
from validator.numerics.formats import FORMATS
from validator.numerics.recipes import Recipe
from validator.numerics.rounding import round_nearest

__all__ = ["demand_named_modules", "from_cache", "reading_cache"]

_INT8_MAX = 127.0


def demand_named_modules(recipe: Recipe, reference: nn.Module) -> None:
    """Refuse a recipe that says how modules read their cache which the reference hasn't got.

    Raises:
        UsageError: a glob of `Recipe.cache_scale` matches no module.
    """
    scales = recipe.cache_scale if isinstance(recipe.cache_scale, tuple) else ()
    names = [name for name, _ in reference.named_modules() if name]
    for scale in scales:
        if not any(scale.holds_for(name) for name in names):
            raise UsageError(
                f"CacheScale(module={scale.module!r}) of the recipe {recipe.name!r} matches no module of the "
                "reference: name those that attend, as the reference does"
                + (f" (one of its modules is {names[-1]!r})" if names else "")
            )


def reading_cache(code: Code, recipe: Recipe, trace: Trace) -> Code | None:
    """Return a module's code with its attention reading from the cache that a recipe declares.

    Engines differ in whether a step reads its own keys and values from the cache as well, or computes with
    them as they are, and so does a prefill: what is nearest to the candidate is taken.

    Args:
        code: of the module.
        recipe: says what the cache holds.
        trace: the candidate's run.

    Returns:
        The code as it is where the module's cache holds no codes; None where it does and the code attends to
        nothing, or would take another path.
    """
    scale = recipe.cache_scale_of(code.call.module)
    if scale is None:
        return code
    if not isinstance(code.replays, Replays):
        return None
    operations = attention_operations(code.replays.tape)
    if not operations:
        return None
    earlier = earlier_keys(code.call, trace)
    readings = [torch.tensor(True)]
    if earlier is not None:
        readings += [earlier, earlier.any(-1, keepdim=True)]
    caches = [_Cache(fmt=recipe.cache, scale=scale, is_read=is_read) for is_read in readings]
    made = [_played(code, code.replays, operations, cache) for cache in caches]
    # A single step may read nothing from the cache.
    found = [x for x in (*made, code if earlier is None else None) if x is not None]
    return min(found, key=_distance, default=None)


def from_cache(x: Tensor, fmt: str, scale: float | None, *, dim: int) -> Tensor:
    """Return keys or values as they come out of a cache.

    Args:
        x: `[*, T, D]` or `[*, D, T]` floating.
        fmt: of the codes, one of `numerics.recipes.CACHES`.
        scale: what they are multiplied by; None where each head of each token has its own.
        dim: which dim is D.

    Returns:
        Float64 of the same shape. Scales and quotients are taken in float32, as devices do, and what is
        larger than the largest code becomes that.
    """
    values = x.to(torch.float32)
    largest = _INT8_MAX if fmt == "int8" else FORMATS[fmt].max
    if scale is None:
        factor = values.abs().amax(dim, keepdim=True) / largest
        factor = factor.where(factor > 0, 1.0)
    else:
        factor = torch.tensor(scale, dtype=torch.float32)
    quotients = (values / factor).clamp(-largest, largest).to(torch.float64)
    codes = quotients.round() if fmt == "int8" else round_nearest(quotients, FORMATS[fmt])
    return codes * factor.to(torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache:
    """What is read from a cache.

    Attributes:
        fmt: of the codes of keys and values.
        scale: what they are multiplied by.
        is_read: `[S, T]` boolean, `[S, 1]` or one for all: which keys a query reads from it.
    """

    fmt: str
    scale: CacheScale
    is_read: Tensor

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
        self, x: Held, scale: float | None, dim: int, rounding: Rounding, dtype: torch.dtype, position: int
    ) -> Value:
        """Return keys or values as they come out of it: dequantised to their own format."""
        values = from_cache(x.data64, self.fmt, scale, dim=dim)
        data = values if rounding.recipe is None else rounding.round(values, dtype, position)
        return Value(data, data)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scores(Compute):
    """The product of queries and keys `[*, D, T]`."""

    cache: _Cache

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        queries, keys = inputs
        read = self.cache.read(keys, self.cache.scale.keys, -2, rounding, self.given[1], self.position)
        is_read = self.cache.read_by(queries.data64.shape[-2], keys.data64.shape[-1])
        (fresh,), (cached,) = (Compute.run(self, (queries, x), rounding, alike) for x in (keys, read))
        return [_chosen(is_read, cached, fresh)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sums(Compute):
    """The product of probabilities and values `[*, T, D]`."""

    cache: _Cache

    def run(self, inputs: Sequence[Held], rounding: Rounding, alike: Sequence[Sequence[Held]]) -> list[Any]:
        weights, values = inputs
        read = self.cache.read(values, self.cache.scale.values, -1, rounding, self.given[1], self.position)
        # One sum over the keys as they are and as they are cached, each query taking one of the two.
        is_read = self.cache.read_by(*weights.data64.shape[-2:])
        both = torch.cat([weights.data64.where(x, 0.0) for x in (~is_read, is_read)], -1)
        all_values = torch.cat((values.data64, read.data64), -2)
        return Compute.run(self, (Value(both, both), Value(all_values, all_values)), rounding, alike)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Attend(Attend):
    """Both products in one operator, with keys and values `[*, T, D]`."""

    cache: _Cache

    def operands(self, inputs: Sequence[Held], rounding: Rounding) -> dict[str, Any]:
        named = Attend.operands(self, inputs, rounding)
        size, scale = (named["query"].shape[-2], named["key"].shape[-2]), self.cache.scale
        is_read = self.cache.read_by(*size)
        shown = named.get("attn_mask")
        if named.pop("is_causal", False):
            shown = torch.ones(size, dtype=torch.bool).tril()
        for name, factor, dtype in zip(
            ("key", "value"), (scale.keys, scale.values), self.given[1:3], strict=True
        ):
            held = Value(named[name], named[name])
            read = self.cache.read(held, factor, -1, rounding, dtype, self.position)
            named[name] = torch.cat((held.data64, read.data64), -2)
        # Each key stands there twice, as it is and as it is cached, and a query sees one of the two.
        halves = [_hidden(shown, ~is_read), _hidden(shown, is_read)]
        named["attn_mask"] = torch.cat([x.expand(*x.shape[:-2], *size) for x in halves], -1)
        return named


def _played(code: Code, replays: Replays, operations: Sequence[Operation], cache: _Cache) -> Code | None:
    """Return code with its attention reading from a cache; None if it takes another path."""
    kinds = (_Attend,) if len(operations) == 1 else (_Scores, _Sums)
    exchanged = {
        operation: kind(**{x.name: getattr(operation, x.name) for x in fields(operation)}, cache=cache)
        for operation, kind in zip(operations, kinds, strict=True)
    }
    tape = replays.tape.exchanged(exchanged)
    try:
        made = tape.play(Rounding.none())
    except Diverted:
        return None
    edges = tuple(
        replace(
            edge,
            exact=real_view(made[edge.key].exact64),
            sigma=made[edge.key].sigma64,
            bound=made[edge.key].bound64,
        )
        if edge.depth and edge.key in made
        else edge
        for edge in code.edges
    )
    anew = Replays(tape=tape, edges=edges, choices=replays.choices, runs=replays.runs)
    return replace(code, edges=edges, replays=anew)


def _distance(code: Code) -> float:
    """Return how far a candidate's edges are from the oracle's, in squares of their size."""
    total = 0.0
    for edge in code.edges:
        if edge.depth and edge.cand.data.is_floating_point() and edge.exact.shape == edge.cand.data.shape:
            apart = (edge.cand.data.to(torch.float64) - edge.exact).nan_to_num(0.0, 0.0, 0.0)
            size = edge.exact.nan_to_num(0.0, 0.0, 0.0).square().sum()
            total += float(apart.square().sum() / size.clamp_min(torch.finfo(torch.float64).tiny))
    return total


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
