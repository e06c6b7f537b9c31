"""End-to-end figures: the candidate's next-token distribution against the reference's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validator.align.traces import Trace
from validator.capturing.records import RankCapture, TensorRef
from validator.checks.padding import Real
from validator.numerics.distributions import compare_logits
from validator.numerics.formats import format_of
from validator.numerics.positions import IGNORED_TARGET

__all__ = ["Logits", "end_to_end", "logits_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Both sides' logits at the positions that are compared.

    Attributes:
        reference, candidate: `[N, V]`, each side's own dtype.
        chosen: `[batch, tokens]` boolean, which positions these are.
        given: what the reference's tokens were, as they are stored, or whatever else it was fed with.
    """

    reference: Tensor
    candidate: Tensor
    chosen: Tensor
    given: Any


def end_to_end(*, ref: RankCapture, trace: Trace, real: Real | None) -> Mapping[str, Any] | None:
    """Compare the logits of both runs, at the real positions of their first call.

    Args:
        ref: the reference's run.
        trace: the candidate's.
        real: the positions to compare, or None for all.

    Returns:
        The figures of `numerics.distributions` by name, with `logit_sigma`, the noise of a logit that the
        runs themselves have; single positions by their `[sequence, token]`. None where the model has no
        logits. Perplexity is that of the next token of the input, where the input is tokens.
    """
    logits = logits_of(ref=ref, trace=trace, real=real)
    if logits is None:
        return None
    reference, candidate, chosen = logits.reference, logits.candidate, logits.chosen
    batch, tokens = chosen.shape
    vocabulary = candidate.shape[-1]
    targets = _next_tokens(logits.given, chosen, vocabulary)
    sigma = _typical_noise(reference, candidate)
    figures = compare_logits(
        ref=reference,
        cand=candidate,
        cand_format=format_of(candidate.dtype),
        top_k=min(5, vocabulary),
        groups=torch.arange(batch)[:, None].expand(batch, tokens)[chosen],
        targets=None if targets is None else targets[chosen],
        logit_sigma=sigma,
    ).to_json()
    places = chosen.nonzero().tolist()
    flips = figures["flips"]
    flips["unexplained_positions"] = [places[position] for position in flips["unexplained_positions"]]
    for listed in (*figures["worst"], *flips["tokens"]):
        listed["position"] = places[listed["position"]]
    return {**figures, "logit_sigma": sigma}


def logits_of(*, ref: RankCapture, trace: Trace, real: Real | None) -> Logits | None:
    """Return both sides' logits, or None where the model has none; arguments are as of `end_to_end`."""
    root = trace.calls.get(("", 0))
    edge = None if root is None else root.outputs.get("logits")
    ours = next((call for call in ref.calls if call.parent is None and call.n == 0), None)
    if ours is None or edge is None:
        return None
    theirs = ours.outputs.get("logits")
    if not isinstance(theirs, TensorRef) or len(edge.shape) != 3:
        return None
    reference, candidate = theirs.read(), edge.read(trace.views[0]).data
    chosen = torch.ones(candidate.shape[:2], dtype=torch.bool)
    asked = None if real is None else real.get(("", 0))
    if asked is not None and asked.shape == chosen.shape:
        chosen = asked
    return Logits(
        reference=reference[chosen],
        candidate=candidate[chosen],
        chosen=chosen,
        given=ours.inputs.get("input_ids"),
    )


def _typical_noise(reference: Tensor, candidate: Tensor) -> float | None:
    """Return the deviation of the logits at the median position: a broken position does not excuse itself.

    Masked and broken logits are left out; None where nothing is left.
    """
    difference = candidate.to(torch.float64) - reference.to(torch.float64)
    difference.masked_fill_(~difference.isfinite(), torch.nan)
    # What is added to all logits of a position changes no probability.
    centred = difference - difference.nanmean(-1, keepdim=True)
    typical = float(centred.square().nanmean(-1).sqrt().nanmedian())
    return None if math.isnan(typical) else typical


def _next_tokens(given: Any, chosen: Tensor, vocabulary: int) -> Tensor | None:
    """Return `[batch, tokens]` what follows each position in the input; None where that is not tokens."""
    if not isinstance(given, TensorRef) or tuple(given.meta.shape) != tuple(chosen.shape):
        return None
    ids = given.read()
    if ids.dtype not in (torch.int64, torch.int32) or not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        return None
    targets = torch.full(chosen.shape, IGNORED_TARGET, dtype=torch.int64)
    targets[:, :-1] = ids[:, 1:].masked_fill(~chosen[:, 1:], IGNORED_TARGET)
    return targets
