"""End-to-end figures: the candidate's next-token distribution against the reference's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from validator.align.traces import Trace
from validator.capturing.records import RankCapture, TensorRef
from validator.numerics.distributions import compare_logits
from validator.numerics.formats import format_of

__all__ = ["end_to_end"]


def end_to_end(*, ref: RankCapture, trace: Trace, real: Tensor | None) -> Mapping[str, Any] | None:
    """Compare the logits of both runs, at the real positions of their first call.

    Args:
        ref: the reference's run.
        trace: the candidate's.
        real: `[batch, tokens]` boolean, or None for all.

    Returns:
        The figures of `numerics.distributions` by name, or None where the model has no logits.
    """
    root = trace.calls.get(("", 0))
    edge = None if root is None else root.outputs.get("logits")
    ours = next((call for call in ref.calls if call.parent is None and call.n == 0), None)
    theirs = None if ours is None else ours.outputs.get("logits")
    if edge is None or not isinstance(theirs, TensorRef) or len(edge.shape) != 3:
        return None
    reference, candidate = theirs.read(), edge.read(trace.views[0]).data
    batch, tokens, vocabulary = candidate.shape
    chosen = torch.ones(batch, tokens, dtype=torch.bool)
    if real is not None and real.shape == chosen.shape:
        chosen = real
    reference, candidate = reference[chosen], candidate[chosen]
    sequences = torch.arange(batch)[:, None].expand(batch, tokens)[chosen]
    difference = candidate.to(torch.float64) - reference.to(torch.float64)
    # The runs' own typical noise, by the median position: a broken position does not excuse itself.
    centred = difference - difference.mean(-1, keepdim=True)
    sigma = float(centred.square().mean(-1).sqrt().median())
    return compare_logits(
        ref=reference,
        cand=candidate,
        cand_format=format_of(candidate.dtype),
        top_k=min(5, vocabulary),
        groups=sequences,
        logit_sigma=sigma,
    ).to_json()
