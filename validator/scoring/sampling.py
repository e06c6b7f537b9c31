"""From logits to the token that is drawn: temperature, top-k, top-p, and noise that both sides share.

Shape legend: * = any leading dims, V = vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.numerics.sampling import paired_gumbel

__all__ = ["GREEDY", "Kept", "Sampling", "could_keep", "processed", "shared_noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen.

    Attributes:
        temperature: what logits are divided by first; 0 chooses the most probable token.
        top_k: how many of the most probable tokens are kept, or None for all.
        top_p: of these, the fewest that hold this much probability after the temperature, at least one.
        seed: of the noise.

    Raises:
        UsageError: a value is not legal.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature is {self.temperature!r}; it must be 0 (greedy) or a finite number")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k is {self.top_k!r}; it must be 1 or more, or None for all tokens")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p!r}; it must be above 0, and 1 at most")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is chosen, without noise."""
        return self.temperature == 0

    def __str__(self) -> str:
        """Return it in words, such as `temperature 0.8, top-p 0.95, seed 0`."""
        if self.is_greedy:
            return "greedy"
        words = [f"temperature {self.temperature:g}"]
        words += [] if self.top_k is None else [f"top-k {self.top_k}"]
        words += [] if self.top_p == 1 else [f"top-p {self.top_p:g}"]
        return ", ".join([*words, f"seed {self.seed}"])


GREEDY = Sampling(temperature=0.0, top_p=1.0)
"""The most probable token, always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Whether top-k and top-p may have kept a token, and whether they may have cut it."""

    may_keep: bool
    may_cut: bool


def processed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return what a token is drawn from: the temperature first, then top-k, then top-p.

    Args:
        logits: `[*, V]` floating.
        sampling: temperature, top-k and top-p.

    Returns:
        `[*, V]` float64, -inf where a token was cut; the logits themselves where the choice is greedy. Of
        tokens that are equally probable at an edge, top-k keeps all, as top-p does.

    Source:
        Nucleus sampling: Holtzman et al., "The curious case of neural text degeneration", arXiv 1904.09751.
    """
    scores = logits.detach().to(torch.float64)
    if sampling.is_greedy:
        return scores
    scores = scores / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        last = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < last, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        # Equal ones share the least sum, so that the order of a sort decides nothing.
        is_same = torch.zeros_like(ordered, dtype=torch.bool)
        is_same[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
        before = before.masked_fill(is_same, -torch.inf).cummax(-1).values
        is_cut = torch.zeros_like(is_same).scatter(-1, order, before >= sampling.top_p)
        scores = scores.masked_fill(is_cut, -torch.inf)
    return scores


def could_keep(
    logits: Tensor,
    token: int,
    sampling: Sampling,
    *,
    sigma: Tensor | float = 0.0,
    lam: float,
    slack: float = 0.0,
) -> Kept:
    """Tell what top-k and top-p may do to a token, when the logits carry noise.

    Args:
        logits: `[V]` of one step.
        token: which.
        sampling: temperature, top-k and top-p.
        sigma: `[V]` standard deviation of each logit, or one number.
        lam: how many standard deviations noise explains.
        slack: how far the port's own sum of probabilities may be off.

    Returns:
        Both are possible near an edge, and among tokens that tie there.

    Source:
        Tokens whose margin noise explains may stand on either side of this one. The sum C of the
        probabilities above it moves by at most 2 C (1 - C) times the noise of a logit, where all that is
        above moves one way and the rest the other: the derivative of a softmax.
    """
    if sampling.is_greedy:
        return Kept(may_keep=True, may_cut=False)
    z = logits.detach().to(torch.float64) / sampling.temperature
    deviation = torch.as_tensor(sigma, dtype=torch.float64).expand_as(z) / sampling.temperature
    reach = lam * torch.hypot(deviation, deviation[token])
    above_surely, above_maybe = z - z[token] > reach, z - z[token] >= -reach
    above_maybe[token] = False
    may_keep = may_cut = True
    if sampling.top_k is not None:
        may_keep = int(above_surely.sum()) < sampling.top_k
        may_cut = int(above_maybe.sum()) >= sampling.top_k
        z = z.masked_fill(z < z.topk(min(sampling.top_k, len(z))).values[-1], -torch.inf)
    else:
        may_cut = False
    if sampling.top_p < 1:
        p = z.softmax(-1)
        spread = lam * float((p * deviation).sum())
        least, most = (float(p[above].sum()) for above in (above_surely, above_maybe))
        may_keep = may_keep and least - 2 * least * (1 - least) * spread - slack < sampling.top_p
        may_cut = may_cut or most + 2 * most * (1 - most) * spread + slack >= sampling.top_p
    return Kept(may_keep=may_keep, may_cut=may_cut)


def shared_noise(sampling: Sampling, *, sequences: int, step: int, vocabulary: int) -> Tensor:
    """Return the noise of one step, `[sequences, V]` float64: zeros where the choice is greedy."""
    if sampling.is_greedy:
        return torch.zeros(sequences, vocabulary, dtype=torch.float64)
    return torch.stack(
        [
            paired_gumbel(seed=sampling.seed, sequence=sequence, step=step, vocabulary=vocabulary)
            for sequence in range(sequences)
        ]
    )
