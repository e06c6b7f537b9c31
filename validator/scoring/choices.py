"""Texts that two models choose token by token, drawing alike: does noise explain each choice that differs?

Shape legend: B = sequences, T = steps, V = vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from validator.scoring.generation import chosen
from validator.scoring.noise import LogitNoise
from validator.scoring.sampling import Sampling, could_keep, processed, shared_noise

__all__ = ["Choice", "TextScore", "judge_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A step at which the candidate chose another token than the reference.

    Attributes:
        sequence, step: where; steps are counted from the first token that was generated.
        ref_token, cand_token: what each chose.
        margin: by how much the reference preferred its token, in logits over the temperature, the shared
            noise included.
        sigmas: the margin in standard deviations of its noise.
        is_explained: whether noise explains it.
        cut: whether top-k or top-p cut the candidate's token in the reference, noise allowed for.
    """

    sequence: int
    step: int
    ref_token: int
    cand_token: int
    margin: float
    sigmas: float
    is_explained: bool
    cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """How a candidate continues prompts, beside the reference's own text.

    Attributes:
        sampling: how tokens are chosen.
        steps: how many choices were judged, all sequences together.
        differing: those that differ, in order of their steps.
        undefined: steps at which the candidate's logits hold NaN or +inf, or nothing that is not masked.
        lam: standard deviations that explain a margin.
    """

    sampling: Sampling
    steps: int
    differing: tuple[Choice, ...]
    undefined: int
    lam: float

    @property
    def first_unexplained(self) -> Choice | None:
        """The first choice that noise does not explain, or None."""
        return next((choice for choice in self.differing if not choice.is_explained), None)

    @property
    def problems(self) -> tuple[str, ...]:
        """What noise does not explain, in sentences."""
        found = []
        if self.undefined:
            found.append(
                f"{self.undefined} of {self.steps} steps have logits from which nothing can be chosen"
            )
        first = self.first_unexplained
        if first is not None:
            count = sum(not choice.is_explained for choice in self.differing)
            why = (
                "which top-k and top-p cut in the reference"
                if first.cut
                else f"which is {first.margin:.3g} below it there, {first.sigmas:.1f} times the noise of "
                f"such a margin; noise explains {self.lam:.1f}"
            )
            found.append(
                f"{count} of {self.steps} tokens ({self.sampling}) are not the reference's, and noise does "
                f"not explain it: first at step {first.step} of sequence {first.sequence}, where it chooses "
                f"token {first.cand_token} for {first.ref_token}, {why}"
            )
        return tuple(found)


def judge_text(
    *,
    ref: Tensor,
    cand: Tensor,
    text: Tensor,
    noise: LogitNoise,
    sampling: Sampling,
    scores: Tensor | None = None,
) -> TextScore:
    """Judge every choice of a candidate that follows the reference's text.

    Args:
        ref: `[B, T, V]` the reference's logits at each step of its text.
        cand: `[B, T, V]` the candidate's.
        text: `[B, T]` what the reference chose.
        noise: of the logits, `N = B*T`.
        sampling: how tokens are chosen, with the noise that both sides share.
        scores: `[B, T, V]` what the port's own sampler made of `cand`; None for that of `processed`.

    Source:
        The margin of a choice against its noise: NUMERICS section 7. With shared Gumbel noise a sampled
        choice is the greedy one of `logits / temperature + noise` among the tokens that top-k and top-p keep.
    """
    batch, steps, vocabulary = ref.shape
    sigma = noise.sigma.reshape(ref.shape)
    undefined = ~cand.amax(dim=-1).isfinite()
    differing = []
    for step in range(steps):
        theirs = processed(cand[:, step], sampling) if scores is None else scores[:, step]
        choice = chosen(theirs, sampling, step=step)
        gumbel = shared_noise(sampling, sequences=batch, step=step, vocabulary=vocabulary)
        for sequence in ((choice != text[:, step]) & ~undefined[:, step]).nonzero()[:, 0].tolist():
            differing.append(
                _judged(
                    ref[sequence, step],
                    sigma[sequence, step],
                    gumbel[sequence],
                    sampling,
                    noise.lam,
                    place=(sequence, step),
                    tokens=(int(text[sequence, step]), int(choice[sequence])),
                )
            )
    return TextScore(
        sampling=sampling,
        steps=batch * steps,
        differing=tuple(differing),
        undefined=int(undefined.sum()),
        lam=noise.lam,
    )


def _judged(
    logits: Tensor,
    sigma: Tensor,
    gumbel: Tensor,
    sampling: Sampling,
    lam: float,
    *,
    place: tuple[int, int],
    tokens: tuple[int, int],
) -> Choice:
    ours, theirs = tokens
    temperature = 1.0 if sampling.is_greedy else sampling.temperature
    z = logits.to(torch.float64) / temperature + gumbel
    margin = float(z[ours] - z[theirs])
    spread = float(torch.hypot(sigma[ours], sigma[theirs])) / temperature
    sigmas = 0.0 if margin <= 0 else margin / spread if spread else float("inf")
    kept = could_keep(logits, theirs, sampling, sigma=sigma, lam=lam).may_keep
    own_cut = could_keep(logits, ours, sampling, sigma=sigma, lam=lam).may_cut
    return Choice(
        sequence=place[0],
        step=place[1],
        ref_token=ours,
        cand_token=theirs,
        margin=margin,
        sigmas=sigmas,
        is_explained=kept and (sigmas <= lam or own_cut),
        cut=not kept,
    )
