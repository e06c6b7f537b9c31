"""How far a model's distributions are from another's on one text, and whether noise explains it.

Shape legend: K = runs, N = positions, V = vocabulary, B = positions of one block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.numerics.distributions import DistributionFigures, compare_logits
from validator.numerics.divergences import kl_divergence
from validator.numerics.formats import format_of
from validator.numerics.positions import IGNORED_TARGET
from validator.numerics.spreads import clustered_se
from validator.scoring.noise import LogitNoise
from validator.swapping.noise import next_count, next_size

__all__ = ["DistributionScore", "PerplexityScore", "judge_distribution", "judge_perplexity"]

_BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionScore:
    """The distance of two models' distributions, and what noise explains of it.

    Attributes:
        figures: of the candidate against what it is compared with.
        kl_limit: mean KL in nats that one healthy candidate in 1000 exceeds.
        flips_limit: the same of the number of positions whose most probable token is another.
        versus: what it is compared with, in words.
    """

    figures: DistributionFigures
    kl_limit: float
    flips_limit: float
    versus: str = "the reference"

    @property
    def problems(self) -> tuple[str, ...]:
        """What noise does not explain, in sentences."""
        figures, found = self.figures, []
        flips = figures.flips
        if figures.undefined:
            found.append(
                f"at {figures.undefined} of {figures.positions} positions the candidate has no distribution: "
                "NaN, +inf, or everything masked"
            )
        if not figures.kl.mean <= self.kl_limit:
            found.append(
                f"the KL divergence from {self.versus} is {figures.kl.mean:.3g} nats on average, and noise "
                f"explains {self.kl_limit:.3g}; top-1 agreement {figures.top1_agreement:.1%}"
            )
        if flips.count > self.flips_limit:
            found.append(
                f"{flips.count} of {figures.positions} positions prefer another token than {self.versus}, "
                f"and noise explains {self.flips_limit:.0f}"
            )
        if flips.explained < flips.count and not figures.undefined:
            worst = flips.tokens[0]
            found.append(
                f"{flips.count - flips.explained} of {flips.count} positions that prefer another token do so "
                f"against a margin that noise does not explain: at worst {worst.margin:.3g} logits, "
                f"{worst.sigmas:.1f} times its noise, where noise explains {flips.lam:.1f}"
            )
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityScore:
    """Perplexity of a text on both sides.

    Attributes:
        tokens: how many were predicted.
        ref, cand: perplexity of each side.
        difference: mean over tokens of candidate minus reference, in nats a token.
        error: its standard error, from the paired differences, clustered by window; None with one window.
        limit: size of the difference that one healthy candidate in 1000 exceeds.
    """

    tokens: int
    ref: float
    cand: float
    difference: float
    error: float | None
    limit: float

    @property
    def problems(self) -> tuple[str, ...]:
        """What noise does not explain, in a sentence."""
        if abs(self.difference) <= self.limit:
            return ()
        error = "" if self.error is None else f" +- {self.error:.2g}"
        return (
            f"perplexity is {self.cand:.4g}, and the reference's is {self.ref:.4g}: "
            f"{self.difference:+.3g}{error} nats a token over {self.tokens} tokens, where noise explains "
            f"{self.limit:.2g}",
        )


def judge_distribution(
    *,
    ref: Tensor,
    cand: Tensor,
    noise: LogitNoise,
    groups: Tensor,
    targets: Tensor | None = None,
    baseline: Tensor | None = None,
    versus: str = "the reference",
) -> DistributionScore:
    """Judge a candidate's distributions at positions that both sides have.

    Args:
        ref: `[N, V]` logits of the reference.
        cand: `[N, V]` logits of the candidate.
        noise: of logits, there.
        groups: `[N]` the sequence of each.
        targets: `[N]` the token that follows each, or -100; None for none.
        baseline: `[N, V]` logits of another candidate to compare with in place of the reference.
        versus: what the candidate is compared with, in words.

    Source:
        The bounds: `swapping.noise.next_size` of mean KL and `next_count` of flips, over the runs. KL is half
        the variance of the logits' error e, to second order, so that between two candidates it is 4 times the
        bound at most, by (a - b)^2 <= 2 a^2 + 2 b^2; where both agree with the reference no token differs.
    """
    found = [_kl_and_flips(ref, run) for run in noise.runs]
    sigma = noise.sigma * (1.0 if baseline is None else 2**0.5)
    return DistributionScore(
        figures=compare_logits(
            ref=ref if baseline is None else baseline,
            cand=cand,
            cand_format=format_of(cand.dtype),
            top_k=min(5, ref.shape[-1]),
            groups=groups,
            targets=targets,
            logit_sigma=sigma,
            lam=noise.lam,
        ),
        kl_limit=next_size([kl for kl, _ in found], is_positive=True) * (1 if baseline is None else 4),
        flips_limit=next_count([flips for _, flips in found]) * (1 if baseline is None else 2),
        versus=versus,
    )


def judge_perplexity(
    *, ref: Tensor, cand: Tensor, noise: LogitNoise, groups: Tensor, targets: Tensor
) -> PerplexityScore | None:
    """Judge the perplexity of a text by the paired differences of its tokens; None where it has none.

    Args:
        ref: `[N, V]` logits of the reference.
        cand: `[N, V]` logits of the candidate.
        noise: of logits, there.
        groups: `[N]` the window of each.
        targets: `[N]` the token that follows each, or -100.
    """
    chosen = targets != IGNORED_TARGET
    if not bool(chosen.any()):
        return None
    ours, theirs = _losses(ref, targets)[chosen], _losses(cand, targets)[chosen]
    means = [float((_losses(run, targets)[chosen] - ours).mean()) for run in noise.runs]
    difference = theirs - ours
    return PerplexityScore(
        tokens=int(chosen.sum()),
        ref=float(ours.mean().exp()),
        cand=float(theirs.mean().exp()),
        difference=float(difference.mean()),
        error=clustered_se(difference, groups[chosen]),
        limit=next_size(means, is_positive=False),
    )


def _kl_and_flips(ref: Tensor, cand: Tensor) -> tuple[float, int]:
    """Return the mean KL of `[N, V]` logits, and at how many positions another token is first."""
    total, flips = 0.0, 0
    for ours, theirs in _blocks(ref, cand):
        total += float(kl_divergence(ours.log_softmax(-1), theirs.log_softmax(-1)).sum())
        flips += int((ours.argmax(-1) != theirs.argmax(-1)).sum())
    return total / len(ref), flips


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return `[N]` float64 negative log-likelihoods; meaningless where there is no target."""
    places = targets.clamp_min(0)[:, None]
    found = [
        -block.log_softmax(-1).gather(-1, place)[:, 0]
        for (block, _), place in zip(_blocks(logits, logits), places.split(_rows(logits)), strict=True)
    ]
    return torch.cat(found)


def _rows(logits: Tensor) -> int:
    return max(1, _BLOCK_ELEMENTS // logits.shape[-1])


def _blocks(ref: Tensor, cand: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both in float64, a block at a time."""
    rows = _rows(ref)
    for ours, theirs in zip(ref.split(rows), cand.split(rows), strict=True):
        yield ours.to(torch.float64), theirs.to(torch.float64)
