"""The port's own sampler, judged by itself: on the candidate's own logits, against its definition.

A sampler that is wrong changes texts and no tensor of the model, so that no layer is to blame. What it does
is known exactly but for the rounding of its own format, and what is wrong is told by trying other samplers.

Shape legend: N = steps, V = vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from validator.numerics.formats import format_of
from validator.numerics.ulp import ulp
from validator.scoring.sampling import Sampling, could_keep, processed

__all__ = ["SamplerScore", "judge_sampler"]

_ULPS = 2.0
"""A division, a product with a rounded reciprocal, or a logarithm of probabilities, and one more rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerScore:
    """What a port's sampler does to its logits.

    Attributes:
        sampling: what it was asked for.
        steps: how many steps were judged.
        wrong: at how many of them it gives another distribution.
        kept_wrongly, cut_wrongly: tokens that top-k and top-p would not have kept, or not have cut.
        looks_like: what would explain it, or None.
    """

    sampling: Sampling
    steps: int
    wrong: int
    kept_wrongly: int
    cut_wrongly: int
    looks_like: str | None

    @property
    def problems(self) -> tuple[str, ...]:
        """What rounding does not explain, in sentences."""
        if not self.wrong:
            return ()
        hint = "" if self.looks_like is None else f"; looks like {self.looks_like}"
        tokens = [
            (self.kept_wrongly, "kept that should be cut"),
            (self.cut_wrongly, "cut that should be kept"),
        ]
        shown = ", ".join(f"{count} tokens are {what}" for count, what in tokens if count)
        return (
            f"process_logits, the port's sampler, gives another distribution than {self.sampling} at "
            f"{self.wrong} of {self.steps} steps{': ' + shown if shown else ''}{hint}",
        )


def judge_sampler(*, logits: Tensor, scores: Tensor, sampling: Sampling) -> SamplerScore:
    """Compare what a sampler gave with what its definition gives for the same logits.

    Args:
        logits: `[N, V]` what it was given.
        scores: `[N, V]` what it returned, in its own format.
        sampling: what it was asked for.

    Returns:
        The judgement. Scores stand for a distribution: what is added to all of a step is no difference.
    """
    keeps = torch.zeros(len(logits), dtype=torch.int64)
    cuts, off = keeps.clone(), keeps.clone().to(torch.bool)
    for step in range(len(logits)):
        keeps[step], cuts[step], off[step] = _differences(logits[step], scores[step], sampling)
    wrong = (keeps > 0) | (cuts > 0) | off
    return SamplerScore(
        sampling=sampling,
        steps=len(logits),
        wrong=int(wrong.sum()),
        kept_wrongly=int(keeps.sum()),
        cut_wrongly=int(cuts.sum()),
        looks_like=_likeness(logits[wrong], scores[wrong], sampling) if bool(wrong.any()) else None,
    )


def _differences(logits: Tensor, scores: Tensor, sampling: Sampling) -> tuple[int, int, bool]:
    """Return how many tokens a step keeps and cuts wrongly, and whether what it keeps has other values."""
    exact = processed(logits, sampling)
    slack = logits.numel() ** 0.5 * 4 * max(format_of(scores.dtype).unit_roundoff, 2.0**-24)
    ours, theirs = exact > -torch.inf, scores > -torch.inf
    kept = cut = 0
    for token in (ours != theirs).nonzero()[:, 0].tolist():
        may = could_keep(logits, token, sampling, lam=0.0, slack=slack)
        kept += bool(theirs[token]) and not may.may_keep
        cut += bool(ours[token]) and not may.may_cut
    return kept, cut, not _is_alike(exact, scores, ours & theirs)


def _is_alike(exact: Tensor, scores: Tensor, both: Tensor) -> bool:
    """Tell whether the scores of the tokens that both keep are equal, up to what is common to all."""
    if not bool(both.any()):
        return False
    ours, theirs = exact[both], scores[both].to(torch.float64)
    best = int(ours.argmax())
    unit = ulp(torch.maximum(ours.abs(), theirs.abs()), format_of(scores.dtype))
    apart = ((theirs - theirs[best]) - (ours - ours[best])).abs()
    return bool((apart <= _ULPS * (unit + unit[best])).all())


def _likeness(logits: Tensor, scores: Tensor, sampling: Sampling) -> str | None:
    for what, other in _others(sampling):
        explained = (_same(other(row), given) for row, given in zip(logits, scores, strict=True))
        if all(explained):
            return what
    return None


def _same(exact: Tensor, scores: Tensor) -> bool:
    ours, theirs = exact > -torch.inf, scores > -torch.inf
    return torch.equal(ours, theirs) and _is_alike(exact, scores, ours)


def _others(sampling: Sampling) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """Return samplers that are wrong in ways that ports have been, by what is wrong."""
    cold = replace(sampling, temperature=1.0)
    temperature = sampling.temperature

    def kept_before(logits: Tensor) -> Tensor:
        return processed(logits, cold) / temperature

    found = [
        ("top-k and top-p applied before the temperature", kept_before),
        ("the temperature not applied", lambda x: processed(x, cold)),
        (
            "logits multiplied by the temperature",
            lambda x: processed(x, replace(sampling, temperature=1 / temperature)),
        ),
        ("top-p not applied", lambda x: processed(x, replace(sampling, top_p=1.0))),
        ("top-k not applied", lambda x: processed(x, replace(sampling, top_k=None))),
        ("neither top-k nor top-p applied", lambda x: processed(x, replace(sampling, top_k=None, top_p=1.0))),
        ("the first token past top-p cut as well", lambda x: _without_last(processed(x, sampling))),
        (
            "the temperature applied twice",
            lambda x: processed(x, replace(sampling, temperature=temperature**2)),
        ),
    ]
    return found if temperature != 1 else [each for each in found if "temperature" not in each[0]]


def _without_last(scores: Tensor) -> Tensor:
    """Cut the least probable of the tokens that are kept."""
    kept = scores > -torch.inf
    last = scores.masked_fill(~kept, torch.inf).argmin()
    return scores if int(kept.sum()) == 1 else scores.index_fill(0, last, -torch.inf)
