"""Sums over ranks that were left out, taken twice, or taken over other ranks.

Where it is known what each rank gives, the candidate is held to sums of whole multiples of these terms;
where it is not, a factor of the number of ranks tells.

Shape legend: * = the edge's shape; N = elements, R = ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from validator.checks.findings import Signature
from validator.checks.signatures.subject import Subject
from validator.numerics.ulp import ulp

__all__ = ["counted_terms", "scaled_reduction"]

FITTED = 2**16
"""Elements that the terms' multiples are fitted on."""

WHOLE = 0.1
"""How far a fitted multiple may be from a whole number."""


def counted_terms(subject: Subject) -> Signature | None:
    """Say how often each rank's term is in the sum, where that is not once.

    Returns:
        `missing_reduction` (with `own_term`, where the ranks that are looked at have their own terms and no
        more, else with the `missing` ranks and the `kept` ones), `double_reduction` (the `repeated` ranks,
        `times`), `mixed_reduction` (both), or None.
    """
    terms = {rank: term for rank, term in subject.terms().items() if term.shape == subject.exact.shape}
    if len(terms) < 2:
        return None
    ranks = tuple(sorted(terms))
    stacked = torch.stack([terms[rank] for rank in ranks], -1)
    for bias in (None, subject.bias):
        if bias is not None and not bool(bias.any()):
            break
        base = subject.exact if bias is None else subject.exact - bias
        excess = _excess(subject, stacked, base)
        if excess is None or not bool(excess.any()):
            continue
        left = subject.residual(base + stacked @ excess, slack=2.0)
        if left is not None:
            counts = {rank: 1 + round(float(n)) for rank, n in zip(ranks, excess, strict=True)}
            found = _Counts(counts=counts, is_biased=bias is None)
            return found.signature(subject, left)
    return None


def scaled_reduction(subject: Subject) -> Signature | None:
    """Say whether the result is off by a factor of the number of ranks, behind a sum over ranks."""
    ranks = subject.world_size
    if not subject.reductions or ranks == 1:
        return None
    for kind, ideal in (("double_reduction", float(ranks)), ("missing_reduction", 1.0 / ranks)):
        left = subject.residual(ideal * subject.exact, slack=max(ideal, 1.0))
        if left is not None:
            parameters = {"factor": ideal, "reductions": subject.reductions}
            return Signature(kind=kind, parameters=parameters, residual_ulp=left)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """How often each rank's term is in a sum, and whether the bias is."""

    counts: dict[int, int]
    is_biased: bool

    def signature(self, subject: Subject, left: float) -> Signature | None:
        missing = [rank for rank, n in self.counts.items() if n == 0]
        repeated = [rank for rank, n in self.counts.items() if n > 1]
        times = sorted({self.counts[rank] for rank in repeated})
        parameters: dict[str, object] = {}
        kept = tuple(rank for rank in self.counts if rank not in missing)
        if missing and kept and kept == subject.ranks and not repeated:
            # Another rank's copy lacks other terms.
            parameters["own_term"] = True
        elif missing:
            parameters |= {"missing": missing, "kept": list(kept)}
        if repeated:
            parameters |= {"repeated": repeated, "times": times[-1]}
        if len(repeated) == len(self.counts) and len(times) == 1:
            parameters = {"factor": float(times[0]), "reductions": subject.reductions}
        if not self.is_biased:
            parameters["without_bias"] = True
        kinds = {(True, False): "missing_reduction", (False, True): "double_reduction"}
        kind = kinds.get((bool(missing), bool(repeated)), "mixed_reduction")
        return Signature(kind=kind, parameters=parameters, residual_ulp=left)


def _excess(subject: Subject, stacked: Tensor, base: Tensor) -> Tensor | None:
    """Return `[R]` how often each term is there beyond once, or None where that is no whole number."""
    places = subject.usable.reshape(-1).nonzero()[:, 0]
    if len(places) < stacked.shape[-1]:
        return None
    places = places[:: -(-len(places) // FITTED)]
    spacing = ulp(subject.exact.reshape(-1)[places], subject.fmt)
    rows = stacked.reshape(-1, stacked.shape[-1])[places] / spacing[:, None]
    difference = (subject.cand - base).reshape(-1)[places] / spacing
    fitted = torch.linalg.lstsq(rows, difference[:, None], driver="gelsd").solution[:, 0]
    whole = fitted.round()
    is_legal = (fitted - whole).abs().max() <= WHOLE and whole.min() >= -1
    return whole if bool(is_legal & (whole.max() < len(whole))) else None
