"""The candidate's next-token distribution against the reference's, position by position.

In blocks of positions, so that memory does not grow with the length of a run.

Shape legend: N = positions, V = vocabulary.
"""

import math

import torch
from torch import Tensor

from validator.align.traces import Trace
from validator.capturing.records import RankCapture
from validator.checks.endtoend import logits_of
from validator.checks.padding import Real
from validator.checks.profiles import OutputProfile, Position
from validator.numerics.divergences import kl_divergence
from validator.numerics.positions import has_distribution

__all__ = ["output_profile"]

_LISTED_POSITIONS = 10
_LISTED_TOKENS = 5
_BLOCK_ELEMENTS = 1 << 20  # of [N, V]: a float64 temporary takes 8 MiB, or one position's


def output_profile(*, ref: RankCapture, trace: Trace, real: Real | None) -> OutputProfile | None:
    """Compare the logits of both runs at each real position of their first call.

    Args:
        ref: the reference's run.
        trace: the candidate's.
        real: the positions to compare, or None for all.

    Returns:
        KL in nats, and the tokens that both sides prefer where it is greatest; None where the model has no
        logits. Positions where the reference has no distribution are left out; where the candidate has none
        it is infinitely far.
    """
    logits = logits_of(ref=ref, trace=trace, real=real)
    if logits is None:
        return None
    kept = has_distribution(logits.reference).nonzero()[:, 0]
    rows = max(1, _BLOCK_ELEMENTS // logits.reference.shape[-1])
    blocks = [
        kl_divergence(_log_softmax(logits.reference[block]), _log_softmax(logits.candidate[block]))
        for block in kept.split(rows)
    ]
    kl = torch.cat(blocks).nan_to_num(math.inf, posinf=math.inf) if len(kept) else torch.empty(0)
    places = [(int(sequence), int(token)) for sequence, token in logits.chosen.nonzero()[kept].tolist()]
    return OutputProfile(
        places=tuple(places),
        kl=tuple(kl.tolist()),
        worst=tuple(
            Position(
                place=places[row],
                kl=float(kl[row]),
                reference=_likeliest(logits.reference[kept[row]]),
                candidate=_likeliest(logits.candidate[kept[row]]),
            )
            for row in kl.topk(min(_LISTED_POSITIONS, len(kl))).indices.tolist()
        ),
    )


def _log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.to(torch.float64), -1)


def _likeliest(logits: Tensor) -> tuple[tuple[int, float], ...]:
    """Return token and probability of the greatest of `[V]` logits; none where they are no distribution."""
    probabilities = _log_softmax(logits).exp()
    if bool(probabilities.isnan().any()):
        return ()
    top = probabilities.topk(min(_LISTED_TOKENS, len(probabilities)))
    return tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
