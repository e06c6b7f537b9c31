"""Greedy texts of two models: is the first token that differs a tie that noise broke, or a fault?

After that token the two models answer different questions, so that nothing further of the texts is compared:
go on by feeding both the reference's text (teacher forcing), and compare their logits.

Shape legend: T = steps of a text, V = vocabulary.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.bands import normal_lambda
from validator.numerics.formats import format_of
from validator.numerics.positions import storage_variance
from validator.numerics.top_lists import TopLogprobs

__all__ = ["FirstDifference", "GreedyVerdict", "judge_greedy"]


class GreedyVerdict(StrEnum):
    """What the first difference of two greedy texts says."""

    IDENTICAL = "identical"
    """No token differs."""
    TIE_BREAK = "tie_break"
    """Noise explains the reference's margin of its token over the candidate's: no fault."""
    DIVERGENT = "divergent"
    """It does not."""
    UNDECIDED = "undecided"
    """The reference doesn't list the candidate's token; noise would explain the least margin it can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The judgement of two greedy texts, with the reference's own margin where they part.

    Attributes:
        verdict: of the first difference.
        steps: how many steps the texts have in common, from the start: up to there, and no further, their
            tokens may be compared. The step that differs is the next, at this index.
        ref_token, cand_token: what follows on each side; None where nothing differs.
        margin: the reference's logit of its token minus that of the candidate's; the least that it can be
            where the reference does not list the candidate's. None where nothing differs.
        sigmas: the margin in standard deviations of its noise; None where nothing differs.
        lam: how many of them noise explains.
        runner_up_margin: the reference's logit of its first token minus that of its second, at that step;
            None where nothing differs, +inf where it knows one token only.
        margin_p50: median over the steps up to that one of the reference's margin of first over second: with
            it a reader sees how close a call this one was.
    """

    verdict: GreedyVerdict
    steps: int
    ref_token: int | None
    cand_token: int | None
    margin: float | None
    sigmas: float | None
    lam: float
    runner_up_margin: float | None
    margin_p50: float


def judge_greedy(
    *,
    ref: Tensor,
    cand: Tensor,
    scores: Tensor | TopLogprobs,
    logit_sigma: float | None = None,
    lam: float | None = None,
) -> FirstDifference:
    """Find the first token that differs, and judge it by the margin that the reference had there.

    Args:
        ref: `[T]` integer, what the reference chose, the end-of-sequence token included if it stopped.
        cand: `[T]` integer, what the candidate chose after the same prompt.
        scores: the reference's at each step, after its own text: `[T, V]` logits, or their top
            log-probabilities (or logits plus noise, for texts sampled with the noise of `paired_gumbel`).
        logit_sigma: standard deviation of `cand - ref` of one logit by rounding; None is that of storage
            alone: of both sides in the format of `scores`, or in the printed log-probabilities' tolerance.
            The margin is the difference of two logits, and has sqrt(2) times that.
        lam: standard deviations that explain a margin; None is sqrt(2 ln(2T / 1e-3)).

    Returns:
        The judgement. At equal logits a difference is a tie, whatever the noise. A tie-break acquits that
        step and not the model: a fault as well shows first where the call is close, so judge many texts.

    Raises:
        ComparisonError: nothing was generated, one text goes on where the other ends, shapes don't fit, or
            the scores prefer another token than the reference's text has: they don't belong to it.

    Source:
        The margin of a choice against its noise, as for single flips (`numerics.flips`).
    """
    steps = _common(ref, cand, scores)
    total = ref.numel()
    lam = normal_lambda(total) if lam is None else lam
    looked_at = min(steps + 1, total)
    first, second = _leading(scores, looked_at)
    ours, _ = _scores_of(scores, ref[:looked_at])
    _demand_own_text(ref, ours, first, scores, logit_sigma, lam)
    margins = first - second
    if steps == total:
        return FirstDifference(
            verdict=GreedyVerdict.IDENTICAL,
            steps=steps,
            ref_token=None,
            cand_token=None,
            margin=None,
            sigmas=None,
            lam=lam,
            runner_up_margin=None,
            margin_p50=float(margins.median()),
        )
    ref_token, cand_token = int(ref[steps]), int(cand[steps])
    theirs, is_known = _scores_of(scores, cand[:looked_at])
    margin = float(ours[steps] - theirs[steps])
    sigmas = _in_sigmas(margin, scores, steps, (ref_token, cand_token), logit_sigma)
    verdict = GreedyVerdict.DIVERGENT
    if sigmas <= lam:
        verdict = GreedyVerdict.TIE_BREAK if bool(is_known[steps]) else GreedyVerdict.UNDECIDED
    return FirstDifference(
        verdict=verdict,
        steps=steps,
        ref_token=ref_token,
        cand_token=cand_token,
        margin=margin,
        sigmas=sigmas,
        lam=lam,
        runner_up_margin=float(margins[steps]),
        margin_p50=float(margins.median()),
    )


def _leading(scores: Tensor | TopLogprobs, steps: int) -> tuple[Tensor, Tensor]:
    """`[steps]` the greatest score of each step, and the next; -inf where there is none."""
    values = scores.ranked()[1] if isinstance(scores, TopLogprobs) else scores.detach()
    values = values[:steps].to(torch.float64)
    leading = torch.topk(values, min(2, values.shape[-1]), dim=-1).values
    return leading[:, 0], leading[:, 1] if leading.shape[-1] > 1 else torch.full_like(
        leading[:, 0], -torch.inf
    )


def _scores_of(scores: Tensor | TopLogprobs, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return `[S]` the score of each step's token, or the greatest that it can have, and which it is."""
    steps = tokens.numel()
    if isinstance(scores, TopLogprobs):
        listed, logprobs = scores.ranked()
        is_it = listed[:steps] == tokens[:, None]
        known = is_it.any(dim=-1)
        value = logprobs[:steps].masked_fill(~is_it, -torch.inf).amax(dim=-1)
        return torch.where(known, value, scores.cap()[:steps]), known
    wrong = tokens[(tokens < 0) | (tokens >= scores.shape[1])]
    if wrong.numel():
        raise ComparisonError(f"token {int(wrong[0])} is none of a vocabulary of {scores.shape[1]}")
    value = scores[:steps].detach().gather(-1, tokens[:, None].to(torch.int64)).squeeze(-1)
    return value.to(torch.float64), torch.ones(steps, dtype=torch.bool)


def _in_sigmas(
    margin: float,
    scores: Tensor | TopLogprobs,
    step: int,
    tokens: tuple[int, int],
    logit_sigma: float | None,
) -> float:
    if margin <= 0:
        return 0.0
    if logit_sigma is not None:
        variance = 2 * logit_sigma**2
    elif isinstance(scores, TopLogprobs):
        variance = 4 * scores.tolerance**2 / 3  # two values on each of two sides, each uniform
    else:
        stored = scores[step, list(tokens)].detach().to(torch.float64)
        variance = 2 * float(storage_variance(stored, format_of(scores.dtype)).sum())
    return margin / variance**0.5 if variance else float("inf")


def _common(ref: Tensor, cand: Tensor, scores: Tensor | TopLogprobs) -> int:
    """Count the steps that both texts share, from the start."""
    for name, text in (("ref", ref), ("cand", cand)):
        if text.ndim != 1 or text.dtype.is_floating_point or text.numel() == 0:
            raise ComparisonError(
                f"{name} is {text.dtype} of shape {list(text.shape)}: give one text of "
                "integer tokens, one at least"
            )
    shape = scores.tokens.shape if isinstance(scores, TopLogprobs) else scores.shape
    if len(shape) != 2 or shape[0] != ref.numel():
        raise ComparisonError(
            f"scores have shape {list(shape)}: give the reference's at each of the {ref.numel()} steps "
            "of its text"
        )
    both = min(ref.numel(), cand.numel())
    differing = (ref[:both] != cand[:both]).nonzero()
    if differing.numel():
        return int(differing[0])
    if ref.numel() != cand.numel():
        raise ComparisonError(
            f"ref has {ref.numel()} tokens and cand has {cand.numel()}, equal as far as both go: whether the "
            "shorter one stopped or was cut off is not known. Append the end-of-sequence token to a text "
            "that stopped, and cut both to the same greatest length"
        )
    return both


def _demand_own_text(
    ref: Tensor,
    ours: Tensor,
    first: Tensor,
    scores: Tensor | TopLogprobs,
    logit_sigma: float | None,
    lam: float,
) -> None:
    """The scores may come from a second run of the reference, which may break ties in another way."""
    lead = first - ours
    for step in (~(lead <= 0)).nonzero().squeeze(-1).tolist():
        token = int(ref[step])
        if not _in_sigmas(float(lead[step]), scores, step, (token, token), logit_sigma) <= lam:
            raise ComparisonError(
                f"at step {step} the reference's scores prefer another token than the {token} of its text, "
                f"by {float(lead[step]):.4g}: give the scores of this text, from a greedy run, after the "
                "processors (penalties, masks) that chose it"
            )
