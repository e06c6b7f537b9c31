"""Attention that reads keys and values as they come out of a quantised cache.

The oracle computes all steps as one prefill, in which each key is as it was computed. Where a recipe says in
which format the cache holds them, the operations of the attention read them in that format, in the oracle, in
its noisy runs and in the control alike: what quantising does is part of what the code computes, and no noise.
So a wrong scale or a misread format shows as sharply as where nothing is quantised.

Shape legend: S = queries, T = keys.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from validator.align.traces import Trace
from validator.checks.attention_sites import attention_operations, behind_attention
from validator.checks.cache_codes import Sharing
from validator.checks.cache_operations import EVERYTHING, Cache, Part, reading
from validator.checks.module_code import Code, CodeEdge, Key
from validator.checks.operations import Operation
from validator.checks.replays import Replays
from validator.checks.roundings import Rounding
from validator.checks.shadow import real_view
from validator.checks.stepping import earlier_keys, steps_of
from validator.checks.tape import Diverted, Tape
from validator.numerics.cache_scales import CacheScale
from validator.numerics.recipes import Recipe

__all__ = ["attends", "reading_cache", "unread_edges"]


def reading_cache(code: Code, recipe: Recipe, trace: Trace) -> Code | None:
    """Return a module's code with its attention reading from the cache that a recipe declares.

    Engines differ in whether a step reads its own keys and values from the cache as well, or computes with
    them as they are, and so does a prefill; and in which keys share a scale, and in which format it is kept
    (`Sharing`). What is nearest to the candidate is taken.

    Args:
        code: of the module.
        recipe: says what the cache holds.
        trace: the candidate's run.

    Returns:
        The code as it is where the module's cache holds no codes; None where it does and the code attends to
        nothing, or would take another path.
    """
    scale = _scale(code, recipe)
    if scale is None:
        return code
    if not isinstance(code.replays, Replays):
        return None
    operations = attention_operations(code.replays.tape)
    if not operations:
        return None
    search = _Search(code=code, tape=code.replays.tape, operations=operations, recipe=recipe)
    best = search.nearest(scale, trace)
    return code if best is code.replays.tape else _played(code, code.replays, best)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Code that reads from a cache in some way, and how far the candidate's edges are from it."""

    cache: Cache
    tape: Tape
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Looks for the way in which a candidate reads from a cache.

    Attributes:
        code: of the module.
        tape: of the code, with keys and values as they are computed.
        operations: of the attention.
        recipe: says what the cache holds.
    """

    code: Code
    tape: Tape
    operations: Sequence[Operation]
    recipe: Recipe

    def nearest(self, scale: CacheScale, trace: Trace) -> Tape:
        """Return the code that is nearest to the candidate.

        First it is told how scales are taken, from keys of earlier steps, which are read from the cache in
        all ways: what else is read adds the same to each distance. Then which keys are read from it.
        """
        code = self.code
        earlier = earlier_keys(code.call, trace)
        readings = [EVERYTHING] if earlier is None else [earlier, EVERYTHING, earlier.any(-1, keepdim=True)]
        shared_by = {scale.keys, scale.values}
        steps = steps_of(code.call, trace)
        ways = tuple(Sharing.ways(shared_by, batch=_batch(code), ranks=_ranks(code), steps=steps))
        first = Cache(fmt=self.recipe.cache, scale=scale, is_read=readings[0], sharing=ways[0])
        best = self._best(replace(first, sharing=way) for way in ways)
        if not math.isfinite(best.distance):  # the keys are no tokens of the steps
            readings = [EVERYTHING]
            best = self._best(replace(first, is_read=EVERYTHING, sharing=way) for way in ways)
        best = self._best((replace(best.cache, is_read=x) for x in readings[1:]), best)
        is_taken = not all(isinstance(x, float | int) for x in shared_by)
        narrow = _narrow(code) if is_taken else None
        if earlier is not None and narrow is None:
            return best.tape
        uncached = self._distance(self.tape)
        if narrow is not None and best.distance < uncached:  # of other codes it is further
            sharing = replace(best.cache.sharing, kept_in=narrow)
            found = self._best((replace(best.cache, sharing=sharing),), best)
            if found is not best:
                best = self._best((replace(found.cache, is_read=x) for x in readings), found)
        # A single step may read nothing from the cache.
        return self.tape if earlier is None and uncached < best.distance else best.tape

    def _best(self, caches: Iterable[Cache], *others: _Fit) -> _Fit:
        fits = []
        for cache in caches:
            tape = _reading(self.tape, self.operations, cache)
            fits.append(_Fit(cache=cache, tape=tape, distance=self._distance(tape)))
        return min((*others, *fits), key=lambda fit: fit.distance)

    def _distance(self, tape: Tape) -> float:
        return _distance(self.code.edges, tape, self.recipe)


def attends(code: Code) -> bool:
    """Tell whether a module's code may attend to keys, in any way."""
    return isinstance(code.replays, Replays) and bool(behind_attention(code.replays.tape))


def unread_edges(code: Code, recipe: Recipe) -> frozenset[Key]:
    """Return the edges that attention is behind which can't be made to read from a declared cache.

    Args:
        code: of a module, for which `reading_cache` gave nothing.
        recipe: says what the cache holds.
    """
    if _scale(code, recipe) is None or not isinstance(code.replays, Replays):
        return frozenset()
    return behind_attention(code.replays.tape)


def _scale(code: Code, recipe: Recipe) -> CacheScale | None:
    """Return the scale of the module, or of a child whose code is part of its code."""
    scales = (recipe.cache_scale_of(module) for module in (code.call.module, *code.inlined))
    return next((scale for scale in scales if scale is not None), None)


def _reading(tape: Tape, operations: Sequence[Operation], cache: Cache) -> Tape:
    """Return code with its attention reading from a cache."""
    parts = (Part.WHOLE,) if len(operations) == 1 else (Part.SCORES, Part.SUMS)
    return tape.exchanged({x: reading(x, part, cache) for x, part in zip(operations, parts, strict=True)})


def _played(code: Code, replays: Replays, tape: Tape) -> Code | None:
    """Return code with other operations; None if it takes another path."""
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


def _batch(code: Code) -> int | None:
    """Return how many sequences a module's code computes; None where its edges don't tell."""
    sizes = {
        edge.cand.data.shape[edge.cand.dims.index("batch")]
        for edge in code.edges
        if "batch" in edge.cand.dims and "token" in edge.cand.dims
    }
    return sizes.pop() if len(sizes) == 1 else None


def _ranks(code: Code) -> int:
    """Return between how many ranks the heads of a module are split, as far as its edges tell."""
    count = 1
    for edge in code.edges:
        for dim, meaning in enumerate(edge.cand.dims):
            if meaning in ("head", "channel"):
                held: dict[int, set[tuple[int, int]]] = {}
                for part in edge.cand.parts:
                    held.setdefault(part.rank, set()).add(part.box[dim])
                count = max(count, len({frozenset(x) for x in held.values()}))
    return count


def _narrow(code: Code) -> torch.dtype | None:
    """Return the format in which a candidate stores keys, where that is narrower than float32."""
    dtypes = (edge.cand.data.dtype for edge in code.edges)
    return next((x for x in dtypes if x in (torch.bfloat16, torch.float16)), None)


def _distance(edges: Sequence[CodeEdge], tape: Tape, recipe: Recipe) -> float:
    """Return how far a candidate's edges are from code under a recipe, in squares of their size.

    Infinite where it takes another path. Not the oracle is asked, but code that rounds before it quantises:
    else a code may be the next one, and those of int8 are no further apart than large values of bfloat16.
    """
    try:
        made = tape.play(Rounding.nearest(recipe))
    except Diverted:
        return math.inf
    total = 0.0
    for edge in edges:
        value = real_view(made[edge.key].exact64) if edge.depth and edge.key in made else None
        if value is not None and edge.cand.data.is_floating_point() and value.shape == edge.cand.data.shape:
            apart = (edge.cand.data.to(torch.float64) - value).nan_to_num(0.0, 0.0, 0.0)
            size = value.nan_to_num(0.0, 0.0, 0.0).square().sum()
            total += float(apart.square().sum() / size.clamp_min(torch.finfo(torch.float64).tiny))
    return total
