"""Bounds of divergences between two distributions of which only the likeliest tokens are known.

What is known of a token is an interval: its printed value and tolerance, or, where a side doesn't list it, 0
to the last value listed. What is known of all together is that each side adds up to 1. The bounds hold for
every pair of distributions that fits; where the vocabulary has room for the rest, one pair attains them.

Shape legend: N = positions, U = columns, one for each token that either side lists.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.numerics.top_lists import ABSENT, TopLogprobs

__all__ = ["Bounds", "Listed", "Pair", "find_tokens", "kl_bounds", "pair_of", "total_variation_bounds"]

_STEPS = 48  # of a bisection over 56: 2e-13, whose square is what the bound loses
_RANGE = 28.0  # of the logarithm of a ratio: beyond it float64's sums decide nothing
_SUM_ERROR = 2e-15  # of a sum of probabilities in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A lower and an upper bound, `[N]` float64 each."""

    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What one side's list says.

    Attributes:
        low, high: `[N, U]` the interval of each token's probability.
        known: `[N, U]` whether this side lists the token.
        rest_low, rest_high: `[N]` the interval of the probability of all that is not listed.
        cap: `[N]` the greatest probability of a token that is not listed.
        unlisted: `[N]` how many tokens are not listed; infinity where the vocabulary is not known.
    """

    low: Tensor
    high: Tensor
    known: Tensor
    rest_low: Tensor
    rest_high: Tensor
    cap: Tensor
    unlisted: Tensor

    @property
    def least(self) -> Tensor:
        """`[N]` the probability that every token that is not listed has at least."""
        others = _times(self.unlisted - 1, self.cap)
        return (self.rest_low - others).clamp_min(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both sides' lists over the same columns.

    Attributes:
        p: of the reference.
        q: of the candidate.
        outside: `[N]` how many tokens neither side lists; infinity where the vocabulary is not known.
    """

    p: Listed
    q: Listed
    outside: Tensor

    def reversed(self) -> "Pair":
        """Exchange the sides."""
        return Pair(p=self.q, q=self.p, outside=self.outside)


def pair_of(*, ref: TopLogprobs, cand: TopLogprobs, vocabulary: int | None) -> Pair:
    """Bring two lists to the same columns: the reference's tokens, then those that only the candidate lists.

    Args:
        ref: at N positions.
        cand: at the same positions.
        vocabulary: number of tokens; None where it is not known.
    """
    (tokens_p, _), (tokens_q, _) = ref.ranked(), cand.ranked()
    twice, _ = find_tokens(tokens_q, tokens_p)
    tokens = torch.cat((tokens_p, tokens_q.masked_fill(twice, ABSENT)), dim=-1)
    total = torch.inf if vocabulary is None else float(vocabulary)
    return Pair(
        p=_listed(ref, tokens, total),
        q=_listed(cand, tokens, total),
        outside=total - (tokens != ABSENT).sum(dim=-1),
    )


def kl_bounds(pair: Pair) -> Bounds:
    """Bound KL(p || q), in nats.

    The lower bound is the dual of the least KL: for all mu >= nu > 0 no pair of distributions that fits is
    nearer than `log nu + 1 - mu` plus the least `p log(p/q) - (1 + log nu) p + mu q` of every column. At the
    optimum the ratio p/q of what neither side lists is mu = nu, or both sides' rest is used up by tokens that
    the other lists, nu < mu.
    The upper bound is infinite where a token may be left without probability by the candidate alone.

    Args:
        pair: what is known.

    Returns:
        `[N]` bounds, never negative; infinite where the sides exclude each other.

    Source:
        Lagrangian duality for the convex program over all that the lists leave open: Boyd and Vandenberghe,
        "Convex Optimization" (2004), 5.1.3 and 5.5.3. With nothing capped it is the log sum
        inequality: Cover and Thomas, "Elements of Information Theory", 2.7.1.
    """
    lower = _kl_lower(pair)
    return Bounds(lower=lower, upper=torch.maximum(_kl_upper(pair), lower))


def total_variation_bounds(pair: Pair) -> Bounds:
    """Bound half the L1 distance.

    The lower bound is the excess of one side over the other that no use of the rest can avoid; the upper one
    leaves no overlap but that which is listed, or for which the vocabulary has no other room.

    Args:
        pair: what is known.

    Returns:
        `[N]` bounds between 0 and 1.
    """
    p, q = pair.p, pair.q
    overlap = (torch.minimum(p.low, q.low) * (p.known & q.known)).sum(-1)
    overlap += (torch.minimum(p.low, q.least[:, None]) * (p.known & ~q.known)).sum(-1)
    overlap += (torch.minimum(q.low, p.least[:, None]) * (q.known & ~p.known)).sum(-1)
    overlap += _times(pair.outside, torch.minimum(p.least, q.least))
    lower = torch.maximum(_excess(pair), _excess(pair.reversed())).clamp(0.0, 1.0)
    return Bounds(lower=lower, upper=torch.maximum(1 - overlap, lower))


def find_tokens(wanted: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each token `[N, U]` is in the row of `among` `[N, K]`, and where, or some place."""
    in_order = among.sort(dim=-1)
    at = torch.searchsorted(in_order.values, wanted.contiguous()).clamp_max(among.shape[-1] - 1)
    found = (in_order.values.gather(-1, at) == wanted) & (wanted != ABSENT)
    return found, in_order.indices.gather(-1, at)


def _excess(pair: Pair) -> Tensor:
    """`[N]` the least sum of `max(p - q, 0)`."""
    p, q = pair.p, pair.q
    both, only_p, only_q = p.known & q.known, p.known & ~q.known, q.known & ~p.known
    excess = ((p.low - q.high).clamp_min(0.0) * both).sum(-1)
    by_token = ((p.low - q.high).clamp_min(0.0) * only_p).sum(-1)
    by_rest = (p.low * only_p).sum(-1) - q.rest_high
    room = (torch.minimum(p.high, q.high) * only_q).sum(-1)
    room += _times(pair.outside, p.cap)
    return excess + torch.maximum(by_token, by_rest) + (p.rest_low - room).clamp_min(0.0)


def _kl_lower(pair: Pair) -> Tensor:
    p, q = pair.p, pair.q
    mu, nu = _multipliers(pair)
    at_p = torch.minimum(torch.maximum(nu[:, None] * q.low, p.low), p.high)
    at_q = torch.minimum(torch.maximum(at_p / mu[:, None], q.low), q.high)
    value = _relative(at_p, at_q).sum(-1) + (nu.log() + 1) * (1 - at_p.sum(-1)) - mu * (1 - at_q.sum(-1))
    return (value - _SUM_ERROR * (1 + mu + nu.log().abs())).clamp_min(0.0)


def _multipliers(pair: Pair) -> tuple[Tensor, Tensor]:
    """Find nearly the best mu and nu, `[N]` each; how near they are decides how tight the bound is."""
    p, q = pair.p, pair.q
    only_p, only_q = p.known & ~q.known, q.known & ~p.known

    def left_of_q(ratio: Tensor) -> Tensor:
        return q.rest_high - (torch.minimum(q.high, p.low / ratio[:, None]) * only_p).sum(-1)

    def left_of_p(ratio: Tensor) -> Tensor:
        return p.rest_high - (torch.minimum(p.high, ratio[:, None] * q.low) * only_q).sum(-1)

    end = torch.full_like(p.rest_high, _RANGE)
    full_q = _bisect(-end, end, lambda ratio: left_of_q(ratio) < 0)
    full_p = _bisect(-end, end, lambda ratio: left_of_p(ratio) >= 0)
    shared = _bisect(
        torch.minimum(full_q, full_p), full_p, lambda ratio: left_of_p(ratio) > ratio * left_of_q(ratio)
    )
    shared = torch.where((p.rest_high == 0) & (q.rest_high == 0), 0.0, shared)
    has_rest = full_q <= full_p
    return torch.where(has_rest, shared, full_q).exp(), torch.where(has_rest, shared, full_p).exp()


def _kl_upper(pair: Pair) -> Tensor:
    p, q = pair.p, pair.q
    least_q = torch.where(q.known, q.low, q.least[:, None])
    of_listed = torch.maximum(_relative(p.low, least_q), _relative(p.high, least_q))
    # All that the reference doesn't list, at the most that a part of it can contribute per probability.
    columns = torch.where(q.known & ~p.known, q.low, torch.inf).amin(-1)
    smallest = torch.minimum(columns, torch.where(pair.outside > 0, q.least, torch.inf))
    factor = (p.cap / smallest).log()
    of_rest = torch.maximum(_product(p.rest_low, factor), _product(p.rest_high, factor))
    return (of_listed * p.known).nan_to_num(0.0, posinf=torch.inf).sum(-1) + of_rest


def _relative(p: Tensor, q: Tensor) -> Tensor:
    """`p log(p/q)`: 0 where p is."""
    return torch.where(p == 0, 0.0, p * (p.log() - q.log()))


def _product(mass: Tensor, factor: Tensor) -> Tensor:
    return torch.where(mass == 0, 0.0, mass * factor)


def _times(count: Tensor, cap: Tensor) -> Tensor:
    """How much `count` tokens, perhaps infinitely many, can take."""
    return torch.where((count <= 0) | (cap == 0), 0.0, count * cap)


def _bisect(low: Tensor, high: Tensor, is_below: Callable[[Tensor], Tensor]) -> Tensor:
    """Find where `is_below` of a ratio turns false, between the logarithms `low` and `high`, `[N]`."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        below = is_below(middle.exp())
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _listed(side: TopLogprobs, tokens: Tensor, total: float) -> Listed:
    """Read off what a side says of the tokens `[N, U]`, of which none is there twice."""
    own, own_logprobs = side.ranked()
    known, place = find_tokens(tokens, own)
    logprobs = own_logprobs.gather(-1, place)
    low = (logprobs - side.tolerance).exp() * known
    high = (logprobs + side.tolerance).exp().clamp_max(1.0) * known
    unlisted = total - side.lengths
    is_whole = unlisted <= 0
    rest_low, rest_high = (
        (1 - mass.sum(-1)).clamp_min(0.0).masked_fill(is_whole, 0.0) for mass in (high, low)
    )
    cap = torch.minimum((side.cap() + side.tolerance).exp(), rest_high)
    is_token = tokens != ABSENT
    return Listed(
        low=low,
        high=torch.where(known, high, cap[:, None]) * is_token,
        known=known,
        rest_low=rest_low,
        rest_high=rest_high,
        cap=cap,
        unlisted=unlisted,
    )
