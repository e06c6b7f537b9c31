"""Flips, positions where candidate and reference prefer different tokens: does noise explain them?

Shape legend: N = positions, V = vocabulary, B = positions of one block, K = candidates for a choice.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from validator.numerics.bands import normal_lambda

__all__ = [
    "FlippedToken",
    "Flips",
    "flip_sigmas",
    "judge_flips",
    "overtaking_probability",
    "poisson_binomial_sf",
]

LISTED_POSITIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FlippedToken:
    """One flip, with the margin that the reference itself had there.

    Attributes:
        position: where.
        ref, cand: the token that each side prefers.
        margin: the reference's logit of its own choice minus that of the candidate's; 0 at a tie.
        sigmas: the margin in standard deviations of its noise; +inf where no noise can explain the flip.
    """

    position: int
    ref: int
    cand: int
    margin: float
    sigmas: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """Positions where the two sides prefer different tokens.

    Attributes:
        count: how many.
        explained: of them, those whose margin in the reference, between its own choice and the
            candidate's, is within `lam` standard deviations of the noise of that margin.
        expected: the greatest number that the noise leads one to expect.
        p_value: probability of at least `count` flips by noise alone; None where only storage rounding is
            known, which is not normal, nor independent of the margins, nor all the noise.
        lam: how many standard deviations explain a flip.
        unexplained_positions: the first ten flips that noise does not explain.
        tokens: the ten flips that are hardest to explain, hardest first.
    """

    count: int
    explained: int
    expected: float
    p_value: float | None
    lam: float
    unexplained_positions: tuple[int, ...]
    tokens: tuple[FlippedToken, ...]


def flip_sigmas(*, ref: Tensor, variance: Tensor, choice_ref: Tensor, choice_cand: Tensor) -> Tensor:
    """Measure how many standard deviations of noise it takes to prefer the candidate's choice.

    The margin is the one that was overcome, not that of the reference's runner-up: a candidate that
    prefers a hopeless token is not excused because two others were close.

    Args:
        ref: `[B, V]` float64 reference logits.
        variance: `[B, V]` float64, variance of `cand - ref` by rounding.
        choice_ref: `[B]` int64, the reference's preferred token.
        choice_cand: `[B]` int64, the candidate's.

    Returns:
        `[B]` float64; 0 where the choices agree or tie, +inf where the reference masks the candidate's.
    """
    return _in_sigmas(ref, variance, choice_ref[:, None], choice_cand[:, None]).squeeze(-1)


def overtaking_probability(*, ref: Tensor, variance: Tensor, ranked: Tensor) -> Tensor:
    """Bound the probability that noise lets a runner-up overtake the reference's choice.

    With one runner-up it is the probability, Phi(-margin / sigma). With several, the overtakings share the
    noise of the first token and so are positively correlated: none happens with at least the
    product of the separate probabilities.

    Args:
        ref: `[B, V]` float64 reference logits.
        variance: `[B, V]` float64, variance of `cand - ref` by rounding.
        ranked: `[B, K]` int64, the reference's best tokens, best first.

    Returns:
        `[B]` float64 in 0 to 1; 0 where K is 1.

    Source:
        Slepian, "The one-sided barrier problem for Gaussian noise", Bell System Technical Journal 41 (1962).
    """
    in_order: Tensor = torch.special.ndtr(_in_sigmas(ref, variance, ranked[:, :1], ranked[:, 1:]))
    return 1 - in_order.prod(dim=-1)


def judge_flips(
    *,
    choice_ref: Tensor,
    choice_cand: Tensor,
    flipped: Tensor,
    margin: Tensor,
    sigmas: Tensor,
    probability: Tensor,
    positions: Tensor,
    lam: float | None,
    storage_only: bool,
) -> Flips:
    """Count the flips, and judge each by its margin and all of them by their number.

    Args:
        choice_ref: `[N]` int64, the reference's preferred token.
        choice_cand: `[N]` int64, the candidate's.
        flipped: `[N]` bool: the choices differ, or the candidate has none.
        margin: `[N]` float64, in the reference, of its choice over the candidate's.
        sigmas: `[N]` float64, see `flip_sigmas`.
        probability: `[N]` float64, see `overtaking_probability`.
        positions: `[N]` int64, what to call each position.
        lam: standard deviations that explain a flip; None is sqrt(2 ln(2N / 1e-3)).
        storage_only: whether the noise is storage rounding alone: then the number of flips is not judged.
    """
    if lam is None:
        lam = normal_lambda(flipped.numel())
    explained = flipped & (sigmas <= lam)
    count = int(flipped.sum())
    # Sorted stably: flips that are as hard to explain as each other stay in the order of positions.
    hardest = torch.where(flipped, sigmas, -1.0).sort(descending=True, stable=True).indices
    return Flips(
        count=count,
        explained=int(explained.sum()),
        expected=float(probability.sum()),
        p_value=None if storage_only else poisson_binomial_sf(probability, count),
        lam=lam,
        unexplained_positions=tuple(positions[flipped & ~explained][:LISTED_POSITIONS].tolist()),
        tokens=tuple(
            FlippedToken(
                position=int(positions[row]),
                ref=int(choice_ref[row]),
                cand=int(choice_cand[row]),
                margin=float(margin[row]),
                sigmas=float(sigmas[row]),
            )
            for row in hardest[: min(count, LISTED_POSITIONS)].tolist()
        ),
    )


def poisson_binomial_sf(probabilities: Tensor, count: int) -> float:
    """Compute the probability of at least `count` successes in independent trials.

    Args:
        probabilities: `[N]` float64, the probability of success of each trial.
        count: how many successes were seen.

    Returns:
        P(X >= count), with an absolute error near 1e-14; 1 for a count of 0 or less.

    Source:
        Divide and conquer with FFT: Biscarri, Zhao and Brunner, "A simple and fast method for computing
        the Poisson binomial distribution function", CSDA 122 (2018).
    """
    if count <= 0:
        return 1.0
    if count > probabilities.numel():
        return 0.0
    # Each row is the distribution of a group of trials, at first of one; trials that never succeed fill up.
    trials = 1 << (probabilities.numel() - 1).bit_length()
    success = torch.nn.functional.pad(probabilities, (0, trials - probabilities.numel()))
    pmf = torch.stack((1 - success, success), dim=-1)
    while pmf.shape[0] > 1:
        length = 2 * pmf.shape[1] - 1
        spectrum = torch.fft.rfft(pmf, n=1 << (length - 1).bit_length())
        pmf = torch.fft.irfft(spectrum[0::2] * spectrum[1::2])[:, :length]
    return min(max(float(pmf[0, count:].sum()), 0.0), 1.0)


def _in_sigmas(ref: Tensor, variance: Tensor, first: Tensor, others: Tensor) -> Tensor:
    """`[B, K]` margins of `first` `[B, 1]` over `others` `[B, K]` in units of their own noise."""
    margin = ref.gather(-1, first) - ref.gather(-1, others)
    sigma = (variance.gather(-1, first) + variance.gather(-1, others)).sqrt()
    # A tie is a tie even without noise, and no noise lifts a masked token.
    in_sigmas = torch.where(margin == 0, 0.0, margin / sigma)
    return torch.where(margin == torch.inf, torch.inf, in_sigmas)
