"""What the top-k log-probabilities of two models, all that a serving engine prints, say of their distance.

A token that one side doesn't list has some probability between 0 and that of the last one listed, and all of
these add up to the mass outside. Figures that depend on it are given as bounds: the distance of the two
distributions, whatever they are, lies between them. Nothing is assumed of what is not listed.

Shape legend: N = positions, K = entries listed at a position, V = vocabulary.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.flips import Flips, judge_flips, overtaking_probability
from validator.numerics.spreads import Spread, clustered_se, jsonable, spread_of
from validator.numerics.top_bounds import find_tokens, kl_bounds, pair_of, total_variation_bounds
from validator.numerics.top_lists import TopLogprobs

__all__ = ["TopLogprobFigures", "compare_top_logprobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobFigures:
    """The distance between two models' distributions as far as their top log-probabilities tell.

    Of each divergence there is a lower bound and an upper one; both are spreads over positions, so that the
    mean, or any percentile, of the true values lies between those of the bounds.

    Attributes:
        positions: positions compared.
        listed_ref, listed_cand: the fewest and most entries that a row of each side has.
        mass_outside_ref, mass_outside_cand: probability of what is not listed.
        kl_lower, kl_upper: KL(p || q) in nats. The upper bound is infinite wherever some token may have
            probability in the reference and none in the candidate: nearly always, unless all are listed.
        kl_reverse_lower, kl_reverse_upper: KL(q || p).
        kl_lower_se: standard error of the mean of `kl_lower`, clustered by group.
        kl_noise_floor: the greatest mean KL that the logit noise leads one to expect. A lower bound of KL
            above it is more than noise.
        total_variation_lower, total_variation_upper: half the L1 distance.
        top1_agreement: fraction of positions where both prefer the same token.
        top_k: how many entries `top_k_overlap` looks at: the fewest that any row has.
        top_k_overlap: mean fraction of them that both sides share.
        flips: positions where the sides prefer different tokens. Of a token that the reference doesn't list
            the least margin that it can have is taken.
        flips_undecided: of the flips counted as explained, those that are so by such a least margin.
    """

    positions: int
    listed_ref: tuple[int, int]
    listed_cand: tuple[int, int]
    mass_outside_ref: Spread
    mass_outside_cand: Spread
    kl_lower: Spread
    kl_upper: Spread
    kl_reverse_lower: Spread
    kl_reverse_upper: Spread
    kl_lower_se: float | None
    kl_noise_floor: float
    total_variation_lower: Spread
    total_variation_upper: Spread
    top1_agreement: float
    top_k: int
    top_k_overlap: float
    flips: Flips
    flips_undecided: int

    def to_json(self) -> dict[str, Any]:
        """Give the figures as JSON values; infinity, which JSON lacks, becomes the string `"inf"`."""
        return {name: jsonable(value) for name, value in asdict(self).items()}


def compare_top_logprobs(
    *,
    ref: TopLogprobs,
    cand: TopLogprobs,
    vocabulary: int | None = None,
    groups: Tensor | None = None,
    logit_sigma: float | None = None,
    lam: float | None = None,
) -> TopLogprobFigures:
    """Bound how far apart two models' distributions are, from their top log-probabilities alone.

    The sides may list different tokens and different numbers of them.

    Args:
        ref: the reference's, at N positions.
        cand: the candidate's, at the same positions.
        vocabulary: number of tokens, V; None where it is not known. It narrows the bounds where little is
            left that is not listed.
        groups: `[N]` integer, the sequence of each position; None takes every position for independent.
        logit_sigma: standard deviation of `cand - ref` of one logit by rounding. None is that of the
            tolerances alone; then flips are judged one by one, but not their number.
        lam: standard deviations of a margin that explain a flip; None is sqrt(2 ln(2N / 1e-3)).

    Returns:
        The figures.

    Raises:
        ComparisonError: the sides have different numbers of positions, or list more tokens than there are.

    Source:
        See `numerics.top_bounds` for the bounds.
    """
    _demand_match(ref, cand, vocabulary, groups)
    pair = pair_of(ref=ref, cand=cand, vocabulary=vocabulary)
    kl, reverse = kl_bounds(pair), kl_bounds(pair.reversed())
    variation = total_variation_bounds(pair)
    top_k = int(torch.minimum(ref.lengths, cand.lengths).min())
    variance = _variance(ref, cand, logit_sigma)
    flips, undecided = _flips(ref, cand, variance, lam, storage_only=logit_sigma is None)
    p = pair.p.low
    return TopLogprobFigures(
        positions=ref.tokens.shape[0],
        listed_ref=_ends(ref.lengths),
        listed_cand=_ends(cand.lengths),
        mass_outside_ref=spread_of(_outside(ref)),
        mass_outside_cand=spread_of(_outside(cand)),
        kl_lower=spread_of(kl.lower),
        kl_upper=spread_of(kl.upper),
        kl_reverse_lower=spread_of(reverse.lower),
        kl_reverse_upper=spread_of(reverse.upper),
        kl_lower_se=clustered_se(kl.lower, groups),
        kl_noise_floor=float(((p * (1 - p)).sum(-1) + pair.p.rest_high).mean()) * variance / 2,
        total_variation_lower=spread_of(variation.lower),
        total_variation_upper=spread_of(variation.upper),
        top1_agreement=1 - flips.count / ref.tokens.shape[0],
        top_k=top_k,
        top_k_overlap=_overlap(ref, cand, top_k),
        flips=flips,
        flips_undecided=undecided,
    )


def _flips(
    ref: TopLogprobs, cand: TopLogprobs, variance: float, lam: float | None, *, storage_only: bool
) -> tuple[Flips, int]:
    """Judge the flips, and count those explained for which the reference gives the margin only as a bound."""
    (tokens, logprobs), (tokens_cand, _) = ref.ranked(), cand.ranked()
    choice_ref, choice_cand = tokens[:, 0], tokens_cand[:, 0]
    is_choice = tokens == choice_cand[:, None]
    is_listed = is_choice.any(dim=-1)
    # Logarithms of probabilities have the margins of the logits.
    its_logprob = torch.where(is_listed, logprobs.masked_fill(~is_choice, -torch.inf).amax(dim=-1), ref.cap())
    margin = logprobs[:, 0] - its_logprob
    sigma = (2 * variance) ** 0.5
    flipped = choice_ref != choice_cand
    sigmas = torch.where(margin <= 0, 0.0, margin / sigma)
    ranked = torch.arange(tokens.shape[-1]).expand_as(tokens)
    flips = judge_flips(
        choice_ref=choice_ref,
        choice_cand=choice_cand,
        flipped=flipped,
        margin=margin,
        sigmas=sigmas,
        probability=overtaking_probability(
            ref=logprobs, variance=torch.full_like(logprobs, variance), ranked=ranked
        ),
        positions=torch.arange(tokens.shape[0]),
        lam=lam,
        storage_only=storage_only,
    )
    return flips, int((flipped & ~is_listed & (sigmas <= flips.lam)).sum())


def _variance(ref: TopLogprobs, cand: TopLogprobs, logit_sigma: float | None) -> float:
    """Variance of `cand - ref` of one logit; a tolerance is the half width of a uniform error."""
    if logit_sigma is not None:
        return logit_sigma**2
    return (ref.tolerance**2 + cand.tolerance**2) / 3


def _outside(side: TopLogprobs) -> Tensor:
    _, logprobs = side.ranked()
    return (1 - logprobs.exp().sum(dim=-1)).clamp_min(0.0)


def _overlap(ref: TopLogprobs, cand: TopLogprobs, top_k: int) -> float:
    (ours, _), (theirs, _) = ref.ranked(), cand.ranked()
    shared, _ = find_tokens(ours[:, :top_k], theirs[:, :top_k])
    return float(shared.to(torch.float64).mean())


def _ends(lengths: Tensor) -> tuple[int, int]:
    return int(lengths.min()), int(lengths.max())


def _demand_match(ref: TopLogprobs, cand: TopLogprobs, vocabulary: int | None, groups: Tensor | None) -> None:
    positions = ref.tokens.shape[0]
    if cand.tokens.shape[0] != positions:
        raise ComparisonError(
            f"ref has {positions} positions and cand has {cand.tokens.shape[0]}: give the same positions of "
            "both, up to the first where their texts differ"
        )
    if groups is not None and (tuple(groups.shape) != (positions,) or groups.dtype.is_floating_point):
        raise ComparisonError(
            f"groups is {groups.dtype} of shape {list(groups.shape)}: give one integer for each of the "
            f"{positions} positions"
        )
    if vocabulary is not None:
        greatest = max(int(ref.tokens.max()), int(cand.tokens.max()))
        if greatest >= vocabulary:
            raise ComparisonError(f"token {greatest} is none of a vocabulary of {vocabulary}")
