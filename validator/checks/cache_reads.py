"""Attention that reads keys and values as they come out of a quantised cache.

The oracle computes all steps as one prefill, in which each key is as it was computed. Where a recipe says in
which format the cache holds them, the operations of the attention read them in that format, in the oracle, in
its noisy runs and in the control alike: what quantising does is part of what the code computes, and no noise.
So a wrong scale or a misread format shows as sharply as where nothing is quantised.

Shape legend: S = queries, T = keys.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

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
    them as they are, and so does a prefill; and in whether a scale that keys share is that of the first step,
    or each step's own. What is nearest to the candidate is taken.

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
    earlier = earlier_keys(code.call, trace)
    readings = [EVERYTHING]
    if earlier is not None:
        readings += [earlier, earlier.any(-1, keepdim=True)]
    ways = Sharing.ways(_batch(code), steps_of(code.call, trace))
    if not {scale.keys, scale.values} & {"tensor", "head"}:
        ways = ways[:1]
    caches = [
        Cache(fmt=recipe.cache, scale=scale, is_read=is_read, sharing=sharing)
        for is_read in readings
        for sharing in ways
    ]
    tapes = [_reading(code.replays.tape, operations, cache) for cache in caches]
    if earlier is None:
        tapes.append(code.replays.tape)  # a single step may read nothing from the cache
    best = min(tapes, key=lambda tape: _distance(code.edges, tape, recipe))
    return code if best is code.replays.tape else _played(code, code.replays, best)


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
