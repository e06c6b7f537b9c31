"""Fits of what attention did with each key: left out, attended to though hidden, another one's.

Say that key j's part `w_j = exp(score_j)`, as a share of what the softmax divides by, became `w'_j`, and its
value `v'_j`. Then the candidate's output c and the oracle's o obey
`c - o = sum over j of a_j (w'_j (v'_j - c) - w_j (v_j - c))` with a = 1 for the keys that it happened to and
0 for the others. That is linear in a: one least-squares fit over many queries, heads and channels tells which
keys these are.

Shape legend: B = sequences, H = query heads, S = queries, T = keys, D = channels of a head, R = rows (queries
of heads), C = columns (keys, or distances to keys).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from validator.checks.signatures.subject import Subject, residual_ulp
from validator.numerics.ulp import ulp

__all__ = ["Attended", "Columns", "EdgeOfHeads", "shares"]

EQUATIONS = 2**24
"""Numbers in the matrix of a fit at most: of more rows, evenly spaced ones are taken."""

COLUMNS = 512
"""Columns of a fit at most: of more keys, neighbours share one."""

PRIOR = 10.0
"""Standard deviation of a share beforehand: what the equations say nothing of keeps it."""

PASSES = 3
"""Fits, each with the weights of the shares that the last one found."""

ALMOST = 0.01
"""Share of the squared error that keys which were read otherwise may leave."""

DETERMINED = 0.25
"""Standard error up to which a share tells 0 from 1."""


_BY_HEADS = 4
"""Dims of what attention makes: batch, heads, queries, channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What an attention does with its keys, in float64.

    Attributes:
        weights: `[B, H, S, T]` exp(score) as a share of what the softmax divides by, of hidden keys too.
        seen: `[B, H, S, T]` boolean, which keys take part.
        keys, values: `[B, H, T, D]`.
        earlier: `[S, T]` boolean, the keys that earlier steps than the query's left in a cache; None for a
            run of a single step.
        weights_of: the weights that other keys would have, or None.
        past: keys and values at the same places in the call before, or None where there was none.
        scale: the number that the code multiplies scores by, or None where that is not known.
    """

    weights: Tensor
    seen: Tensor
    keys: Tensor
    values: Tensor
    earlier: Tensor | None
    weights_of: Callable[[Tensor], Tensor | None]
    past: Callable[[], tuple[Tensor, Tensor] | None] = lambda: None
    scale: Callable[[], float | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOfHeads:
    """An edge that holds what attention made, by heads.

    Attributes:
        subject: the edge.
        exact, cand, allowed: `[B, H, S, D]`.
        active: `[B, H, S]` boolean: queries that are off, in sequences and heads that are.
        keys: T.
    """

    subject: Subject
    exact: Tensor
    cand: Tensor
    allowed: Tensor
    active: Tensor
    keys: int

    @classmethod
    def of(cls, subject: Subject, attended: Attended) -> "EdgeOfHeads | None":
        """Take an edge apart; None where it is not the attention's output alone."""
        output = attended.weights.where(attended.seen, 0.0) @ attended.values
        if output.ndim != _BY_HEADS:
            return None
        batch, heads, queries, channels = output.shape
        if subject.exact.shape[:-1].numel() * subject.exact.shape[-1] != output.numel():
            return None

        def by_heads(x: Tensor) -> Tensor:
            whole = x.expand(subject.exact.shape)
            return whole.reshape(batch, queries, heads, channels).transpose(1, 2)

        exact, outside = by_heads(subject.exact), by_heads(subject.outside)
        known = by_heads(subject.usable)
        far = ((exact - output).abs() > 1e-6 * output.abs().amax()) & known
        if bool(far.any()) or not bool(outside.any()):
            return None
        off = outside.any(-1)
        # A query of which some channel is no number, or is not judged, says nothing that can be fitted.
        active = off.any(1, keepdim=True) & off.any(2, keepdim=True) & known.all(-1)
        if not bool(active.any()):
            return None
        return cls(
            subject=subject,
            exact=exact,
            cand=by_heads(subject.cand),
            allowed=by_heads(subject.allowed),
            active=active,
            keys=attended.values.shape[-2],
        )

    def everywhere(self) -> "EdgeOfHeads":
        """Return the edge with all its queries active whose channels are judged, those that are right too."""
        shape = self.exact.transpose(1, 2).shape
        known = self.subject.usable.expand(self.subject.exact.shape).reshape(shape).transpose(1, 2)
        return replace(self, active=known.all(-1))

    def residual(self, corrected: Tensor, *, rough: float = ALMOST) -> float | None:
        """Hold the candidate to corrected values of the queries that are off.

        Args:
            corrected: `[B, H, S, D]`.
            rough: share of the squared error that may stay where some of it is outside of the band, which is
                that of the oracle's scores and not of those that were made.

        Returns:
            What stays of these queries, in ulp; None where it is too much.
        """
        values = torch.where(self.active[..., None], corrected, self.exact)
        flat = values.transpose(1, 2).reshape(self.subject.exact.shape)
        if not bool(flat[self.subject.usable].isfinite().all()):
            return None
        if self.subject.residual(flat, slack=2.0) is None and self.left(corrected) > rough:
            return None
        chosen = self.active[..., None].expand(self.cand.shape)
        return residual_ulp((self.cand - corrected)[chosen], ulp(corrected, self.subject.fmt)[chosen])

    def left(self, corrected: Tensor) -> float:
        """Return the share of the squared error of the queries that are off which stays, in bands."""
        chosen = self.active[..., None].expand(self.cand.shape)
        weight = 1 / self.allowed[chosen].square()
        before = (weight * (self.cand - self.exact)[chosen].square()).sum()
        return float((weight * (self.cand - corrected)[chosen].square()).sum() / before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Shares of columns, fitted.

    Attributes:
        share: `[C]`.
        error: `[C]` standard errors.
        column: `[S, T]` the column of each query and key.
    """

    share: Tensor
    error: Tensor
    column: Tensor

    def whole(self, share: float) -> Tensor | None:
        """Return `[S, T]` where the share is a given one, where all that are known are it or 0; else None."""
        known = self.error < DETERMINED
        is_it = known & ((self.share - share).abs() < 0.5)
        is_not = known & (self.share.abs() <= 0.5)
        if not bool(is_it.any()) or bool((known & ~is_it & ~is_not).any()):
            return None
        return _filled(is_it, is_not)[self.column]


def shares(
    edge: EdgeOfHeads,
    direction: Callable[[Tensor, Tensor, Tensor], Tensor],
    *,
    added: Tensor | None = None,
    is_distance: bool = False,
) -> Columns:
    """Fit how much of a direction each key has, the same for all queries and heads that are off.

    Args:
        edge: what is fitted.
        direction: makes `[R, D, T]` of the sequences, heads and queries `[R]`.
        added: `[B, H, S, T]` what a whole share adds to what the softmax divides by: the rounding of the
            candidate's output counts as often. None where it adds nothing.
        is_distance: whether it is a share of each distance from the query instead.
    """
    queries, channels = edge.exact.shape[2:]
    keys = edge.keys
    rows = edge.active.nonzero()
    rows = rows[:: -(-len(rows) * channels * keys // EQUATIONS)]
    places = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    column = places + keys - 1 if is_distance else torch.arange(keys).expand(queries, keys)
    column = column // -(-int(column.max() + 1) // COLUMNS)
    count = int(column.max()) + 1
    share = torch.ones(count, dtype=torch.float64)
    covariance = torch.eye(count, dtype=torch.float64)
    for _ in range(1 if added is None else PASSES):
        normal = torch.eye(count, dtype=torch.float64) / PRIOR**2
        right = torch.zeros(count, dtype=torch.float64)
        for part in rows.split(max(1, 2**22 // (channels * keys))):
            b, h, s = part.unbind(-1)
            made = direction(b, h, s)
            index = column[s][:, None].expand(made.shape)
            summed = made.new_zeros(*made.shape[:2], count).scatter_add_(2, index, made)
            scale = 1 / edge.allowed[b, h, s]
            if added is not None:
                more = (added[b, h, s] * share.clamp(0, 1)[column[s]]).sum(-1, keepdim=True)
                scale = scale / (1 + more).clamp_min(0.1)
            a = (summed * scale[..., None]).flatten(0, 1)
            normal += a.T @ a
            right += a.T @ ((edge.cand - edge.exact)[b, h, s] * scale).flatten()
        covariance = torch.linalg.inv(normal)
        share = covariance @ right
    return Columns(share=share, error=covariance.diagonal().sqrt(), column=column)


def _filled(is_it: Tensor, is_not: Tensor) -> Tensor:
    """Add the columns between chosen ones of which nothing is known."""
    chosen = is_it.clone()
    indices = is_it.nonzero()[:, 0].tolist()
    for start, stop in itertools.pairwise(indices):
        if not bool(is_not[start:stop].any()):
            chosen[start:stop] = True
    return chosen
