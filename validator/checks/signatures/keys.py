"""Keys that attention read wrongly: evicted, hidden ones, another sequence's, or at another scale.

Each hypothesis is fitted (`key_fits`), and then held to the candidate: the output that the oracle's own
scores and values make of it must agree with the candidate's within the band.

Shape legend: B = sequences, H = query heads, S = queries, T = keys, D = channels of a head, R = rows.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures.key_fits import Attended, EdgeOfHeads, shares
from validator.checks.signatures.key_scales import fit_scale
from validator.checks.signatures.subject import Subject

__all__ = ["keys_signature"]

SOURCES = 8
"""How many other sequences are tried."""

ROUNDING = 1.0
"""What one source leaves, in ulp, if it is what was read: the candidate's last rounding leaves 0.29."""

SHIFTS = (0, 4, 8, 16, 32, 64, -4, -8, -16, -32, -64)
"""How many tokens further a block of another place is tried at."""

BLOCKS = (4, 8, 16, 32, 64)
"""How many tokens a block of a pool is tried to hold."""

TRIED = tuple(math.exp(sign * size) for size in (0.03, 0.06, 0.12, 0.25, 0.5) for sign in (1, -1))
"""Factors at which it is looked which keys are scaled: a share between 1/2 and 3/2 of one is near to it."""

ROUGH = 0.05
"""Share of the squared error that a scale may leave where what is read was rounded besides."""

_WHICH: tuple[dict[str, bool], ...] = (
    {"of_keys": True},
    {"of_values": True},
    {"of_keys": True, "of_values": True},
)


def keys_signature(subject: Subject, attended: Attended) -> Signature | None:
    """Say which keys attention read otherwise than it should.

    Args:
        subject: the edge that holds what attention made, `[B, S, H*D]` or the like.
        attended: what it should do.

    Returns:
        With `start` and `stop` of the tokens, or a list of `keys`, and the `sequences`, where not all are
        off:

        - `keys_left_out`: they take no part; `distance` where it is the same for each query.
        - `keys_not_hidden`: they take part although the mask hides them; `distance` likewise.
        - `keys_of_another`: they, and the values, are those of another sequence (`of_sequence`), of the
          request before (`of_earlier_call`), of another place (`tokens` before), or of the front of a pool in
          which blocks of `of_pool` tokens of all sequences lie in turn.
        - `attention_scale`: the scores of all queries are multiplied by `factor`; with the `value` of the
          scale that the reference multiplies them by, where that is known.
        - `cache_scale`: of tokens of earlier steps, `factor_of_keys` and `factor_of_values` multiply these.
        - `keys_scaled`: the same in a run of a single step, of some tokens, sequences or heads, or of both.

        None where nothing holds.
    """
    edge = EdgeOfHeads.of(subject, attended)
    if edge is None:
        return None
    return (
        _left_out(edge, attended)
        or _not_hidden(edge, attended)
        or _of_another(edge, attended)
        or _attention_scale(edge, attended)
        or _scaled(edge, attended)
    )


def _left_out(edge: EdgeOfHeads, attended: Attended) -> Signature | None:
    # Without any key nothing is left, which would agree with everything: the query's own key stays.
    queries, keys = attended.seen.shape[-2:]
    own = torch.eye(keys, dtype=torch.bool)[keys - queries :]
    weights = attended.weights.where(attended.seen & ~own, 0.0)
    for is_distance in (False, True):
        found = shares(
            edge, lambda b, h, s: _parts(edge, attended, weights, b, h, s), is_distance=is_distance
        )
        chosen = found.whole(-1.0)
        if chosen is None:
            continue
        gone = attended.seen & chosen & ~own
        lost = weights.where(gone, 0.0)
        left = edge.residual((edge.exact - lost @ attended.values) / (1 - lost.sum(-1, keepdim=True)))
        if left is not None:
            return _signature("keys_left_out", edge, gone, left, is_distance=is_distance)
    return None


def _not_hidden(edge: EdgeOfHeads, attended: Attended) -> Signature | None:
    if bool(attended.seen.all()):
        return None
    weights = attended.weights.where(~attended.seen, 0.0)
    # A window hides by distance, padding by place.
    hides_places = not bool(attended.seen.any(2).any(1).any(0).all())
    for is_distance in (False, True) if hides_places else (True, False):
        found = shares(
            edge,
            lambda b, h, s: _parts(edge, attended, weights, b, h, s),
            added=weights,
            is_distance=is_distance,
        )
        chosen = found.whole(1.0)
        if chosen is None:
            continue
        shown = ~attended.seen & chosen
        more = weights.where(shown, 0.0)
        left = edge.residual((edge.exact + more @ attended.values) / (1 + more.sum(-1, keepdim=True)))
        if left is not None:
            return _signature("keys_not_hidden", edge, shown, left, is_distance=is_distance)
    return None


def _of_another(edge: EdgeOfHeads, attended: Attended) -> Signature | None:
    """Try sources until one leaves no more than rounding does; else name the one that leaves least."""
    nearest: Signature | None = None
    least = math.inf
    for parameters, keys, values in _sources(edge, attended):
        chosen = _read_instead(edge, attended, keys, values, attended.seen)
        if chosen is None:
            continue
        weights, others = attended.weights.where(chosen, 0.0), attended.weights_of(keys)
        assert others is not None
        others = others.where(chosen, 0.0)
        total = 1 + (others - weights).sum(-1, keepdim=True)
        left = edge.residual((edge.exact - weights @ attended.values + others @ values) / total)
        if left is not None and left < least:
            nearest, least = _signature("keys_of_another", edge, chosen, left, parameters), left
        if least < ROUNDING:
            break
    return nearest


def _read_instead(
    edge: EdgeOfHeads, attended: Attended, keys: Tensor, values: Tensor, region: Tensor
) -> Tensor | None:
    """Return `[B, H, S, T]` in whose place others of a region were read, if some were, and not in part."""
    others = attended.weights_of(keys)
    if others is None or not bool(others.where(region, 0.0).isfinite().all()):
        return None
    others, weights = others.where(region, 0.0), attended.weights.where(region, 0.0)

    def direction(b: Tensor, h: Tensor, s: Tensor) -> Tensor:
        cand = edge.cand[b, h, s][..., None]
        theirs = others[b, h, s][:, None] * (values[b, h].mT - cand)
        return theirs - weights[b, h, s][:, None] * (attended.values[b, h].mT - cand)

    chosen = shares(edge, direction, added=others - weights).whole(1.0)
    return None if chosen is None else region & chosen


def _sources(edge: EdgeOfHeads, attended: Attended) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
    """Yield what may have been read in place of the keys and values, with what to call it."""
    past = attended.past()
    if past is not None and past[0].shape == attended.keys.shape and past[1].shape == attended.values.shape:
        yield {"of_earlier_call": True}, *past
    batch, _, tokens, _ = attended.keys.shape
    guilty = edge.active.any(2).any(1).nonzero()[:, 0].tolist()
    for shift in SHIFTS:
        if abs(shift) >= tokens:
            continue
        moved = {"tokens": shift} if shift else {}
        keys, values = (x.roll(shift, -2) for x in (attended.keys, attended.values))
        if shift:
            yield moved, keys, values
        for source in range(min(batch, SOURCES)):
            if guilty != [source]:
                parameters: dict[str, Any] = {"of_sequence": source} | moved
                yield parameters, keys[source].expand(keys.shape), values[source].expand(values.shape)
    for block in BLOCKS if batch > 1 else ():
        if 2 * block <= tokens:
            keys, values = (_pooled(x, block) for x in (attended.keys, attended.values))
            yield {"of_pool": block}, keys.expand(attended.keys.shape), values.expand(attended.values.shape)


def _pooled(x: Tensor, block: int) -> Tensor:
    """Return `[H, T, D]`, the front of a pool in which blocks of `[B, H, T, D]` lie in turn."""
    place = torch.arange(x.shape[2])
    number = place // block
    return x[number % len(x), :, number // len(x) * block + place % block].transpose(0, 1)


def _attention_scale(edge: EdgeOfHeads, attended: Attended) -> Signature | None:
    """Fit one factor of all scores to all queries, those that are right included."""
    edge = edge.everywhere()
    fit = fit_scale(edge, attended, attended.seen, of_keys=True)
    left = None if fit is None else edge.residual(fit.output)
    if fit is None or left is None:
        return None
    if attended.earlier is not None:
        # Keys that only later steps read at another scale leave the first one as it is.
        region = attended.seen & attended.earlier
        of_cache = [fit_scale(edge, attended, region, **which) for which in _WHICH]
        if any(x is not None and edge.left(x.output) <= edge.left(fit.output) for x in of_cache):
            return None
    value = attended.scale()
    parameters = {"factor": fit.parameters["factor_of_keys"]} | ({} if value is None else {"value": value})
    return Signature(kind="attention_scale", parameters=parameters, residual_ulp=left)


def _scaled(edge: EdgeOfHeads, attended: Attended) -> Signature | None:
    """Fit factors of the keys and values of earlier steps, of all, or of those that it shows on."""
    is_single = attended.earlier is None
    region = attended.seen if attended.earlier is None else attended.seen & attended.earlier
    kind = "keys_scaled" if is_single else "cache_scale"
    fits = [fit_scale(edge, attended, region, **which) for which in _WHICH]
    whole = [fit for fit in fits if fit is not None]
    for fit in whole:
        left = edge.residual(fit.output, rough=0)
        if left is not None:
            # All values of a step by one factor are all that attention makes by that factor.
            is_factor = is_single and "factor_of_keys" not in fit.parameters
            return None if is_factor else _signature(kind, edge, region, left, fit.parameters)
    for factor in TRIED:
        for of_keys, of_values in ((factor, 1.0), (1.0, factor)):
            keys, values = attended.keys * of_keys, attended.values * of_values
            some = _read_instead(edge, attended, keys, values, region)
            if some is None:
                continue
            of_some = fit_scale(edge, attended, some, of_keys=of_keys != 1, of_values=of_values != 1)
            left = None if of_some is None else edge.residual(of_some.output, rough=0)
            if of_some is not None and left is not None:
                return _signature(kind, edge, some, left, of_some.parameters)
    # What is read was rounded besides, to 8 bits say. A second factor must be worth it.
    best = min(whole, key=lambda fit: edge.left(fit.output) * len(fit.parameters) ** 2, default=None)
    left = None if best is None else edge.residual(best.output, rough=ROUGH)
    if best is None or left is None:
        return None
    return _signature(kind, edge, region, left, best.parameters)


def _parts(edge: EdgeOfHeads, attended: Attended, weights: Tensor, b: Tensor, h: Tensor, s: Tensor) -> Tensor:
    """Return `[R, D, T]` how far more of each key would move the candidate's output."""
    away = attended.values[b, h].mT - edge.cand[b, h, s][..., None]
    return weights[b, h, s][:, None] * away


def _signature(
    kind: str,
    edge: EdgeOfHeads,
    changed: Tensor,
    left: float,
    parameters: dict[str, Any] | None = None,
    *,
    is_distance: bool = False,
) -> Signature:
    """Name the keys `[B, H, S, T]` that queries which are off read otherwise."""
    of_active = changed & edge.active[..., None]
    found = _span(of_active.any(2).any(1).any(0).nonzero()[:, 0].tolist())
    if is_distance:
        s, t = of_active.any(1).any(0).nonzero().unbind(-1)
        distances = (s + changed.shape[-1] - changed.shape[-2] - t).unique().tolist()
        found["distance"] = [distances[0], distances[-1]]
    guilty = edge.active.any(2).any(1)
    if not bool(guilty.all()):
        found["sequences"] = guilty.nonzero()[:, 0].tolist()
    return Signature(kind=kind, parameters=found | (parameters or {}), residual_ulp=left)


def _span(keys: list[int]) -> dict[str, Any]:
    if keys and keys[-1] - keys[0] + 1 == len(keys):
        return {"start": keys[0], "stop": keys[-1] + 1}
    return {"keys": keys}
