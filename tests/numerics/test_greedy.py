import math

import pytest
import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.formats import format_of
from validator.numerics.greedy import GreedyVerdict, judge_greedy
from validator.numerics.sampling import gumbel_choice, paired_gumbel
from validator.numerics.top_lists import TopLogprobs
from validator.numerics.ulp import ulp

STEPS, VOCABULARY = 40, 30


def logits_of(seed: int = 0) -> Tensor:
    return 4 * torch.randn(STEPS, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def with_margin(logits: Tensor, step: int, margin: float) -> Tensor:
    """The same, but that the runner-up of one step is `margin` behind."""
    made = logits.clone()
    first, second = logits[step].topk(2).indices.tolist()
    made[step, second] = made[step, first] - margin
    return made


def flipped(text: Tensor, logits: Tensor, step: int) -> Tensor:
    """The same text with the runner-up at one step, and other tokens after it."""
    made = text.clone()
    made[step] = logits[step].topk(2).indices[1]
    made[step + 1 :] = (text[step + 1 :] + 1) % VOCABULARY
    return made


def test_equal_texts_are_identical() -> None:
    logits = logits_of()
    text = logits.argmax(-1)
    made = judge_greedy(ref=text, cand=text.int(), scores=logits)
    assert (made.verdict, made.steps) == (GreedyVerdict.IDENTICAL, STEPS)
    assert (made.ref_token, made.cand_token, made.margin, made.sigmas, made.runner_up_margin) == (None,) * 5
    leading = logits.double().topk(2).values
    assert made.margin_p50 == float((leading[:, 0] - leading[:, 1]).median())


def test_two_logits_within_a_bfloat16_ulp_of_each_other_break_as_they_like() -> None:
    logits = logits_of().bfloat16().float()
    top = logits[17].double().amax()
    step = float(ulp(top[None], format_of("bfloat16")))
    logits = with_margin(logits, 17, step).bfloat16()
    text = logits.argmax(-1)
    made = judge_greedy(ref=text, cand=flipped(text, logits, 17), scores=logits)
    assert (made.verdict, made.steps) == (GreedyVerdict.TIE_BREAK, 17)
    assert made.margin == made.runner_up_margin == step
    assert made.margin_p50 > 2 * step
    assert (made.ref_token, made.cand_token) == tuple(logits[17].topk(2).indices.tolist())


def test_an_exact_tie_is_a_tie_without_any_noise() -> None:
    logits = with_margin(logits_of(), 5, 0.0)
    text = logits.argmax(-1)
    other = text.clone()
    other[5] = (logits[5] == logits[5].amax()).nonzero().squeeze(-1)[-1]
    made = judge_greedy(ref=text, cand=other, scores=logits, logit_sigma=0.0)
    assert (made.verdict, made.margin, made.sigmas) == (GreedyVerdict.TIE_BREAK, 0.0, 0.0)


def test_a_wide_margin_is_divergent_however_close_the_runner_up_was() -> None:
    logits = with_margin(logits_of(), 9, 1e-3)
    text = logits.argmax(-1)
    hopeless = text.clone()
    hopeless[9] = logits[9].argmin()
    made = judge_greedy(ref=text, cand=hopeless, scores=logits, logit_sigma=0.05)
    assert (made.verdict, made.steps) == (GreedyVerdict.DIVERGENT, 9)
    assert made.margin == pytest.approx(float(logits[9].max() - logits[9].min()))
    assert made.runner_up_margin == pytest.approx(1e-3, rel=1e-3)


def test_the_noise_of_a_margin_is_that_of_two_logits() -> None:
    logits = with_margin(logits_of(), 20, 0.5).double()
    text = logits.argmax(-1)
    made = judge_greedy(ref=text, cand=flipped(text, logits, 20), scores=logits, logit_sigma=0.1)
    assert made.sigmas == pytest.approx(0.5 / (math.sqrt(2) * 0.1), rel=1e-6)
    # lambda for 40 steps: sqrt(2 ln(80,000)) = 4.75, so 3.5 sigma are explained and at 0.07 each 5.1 are not.
    assert made.lam == pytest.approx(math.sqrt(2 * math.log(80_000)))
    assert made.verdict == GreedyVerdict.TIE_BREAK
    strict = judge_greedy(ref=text, cand=flipped(text, logits, 20), scores=logits, logit_sigma=0.07)
    assert strict.verdict == GreedyVerdict.DIVERGENT


def test_healthy_noise_is_never_divergent_and_a_fault_of_ten_sigma_nearly_always() -> None:
    verdicts: dict[str, list[GreedyVerdict]] = {"healthy": [], "faulty": []}
    for seed in range(200):
        logits = logits_of(seed).double()
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1000 + seed)).double()
        text = logits.argmax(-1)
        for kind, sigma in (("healthy", 0.05), ("faulty", 1.0)):
            cand = (logits + sigma * noise).argmax(-1)
            verdicts[kind].append(judge_greedy(ref=text, cand=cand, scores=logits, logit_sigma=0.05).verdict)
    assert GreedyVerdict.DIVERGENT not in verdicts["healthy"]
    assert GreedyVerdict.TIE_BREAK in verdicts["healthy"], "the noise does flip tokens"
    assert verdicts["faulty"].count(GreedyVerdict.DIVERGENT) > 100


def test_top_logprobs_have_the_margins_of_the_logits() -> None:
    logits = with_margin(logits_of(), 12, 0.25).double()
    text = logits.argmax(-1)
    cand = flipped(text, logits, 12)
    whole = judge_greedy(ref=text, cand=cand, scores=logits, logit_sigma=0.1)
    listed = judge_greedy(ref=text, cand=cand, scores=TopLogprobs.from_logits(logits, 3), logit_sigma=0.1)
    assert listed.margin == pytest.approx(whole.margin)
    assert listed.margin_p50 == pytest.approx(whole.margin_p50)
    assert (listed.verdict, listed.steps) == (whole.verdict, whole.steps) == (GreedyVerdict.TIE_BREAK, 12)


def test_a_token_that_is_not_listed_is_undecided_or_divergent_but_no_tie() -> None:
    scores = TopLogprobs.from_rows([{0: -0.1}, {0: -0.7, 1: -0.75}])
    ref, cand = torch.tensor([0, 0]), torch.tensor([0, 8])
    assert judge_greedy(ref=ref, cand=cand, scores=scores, logit_sigma=0.1).verdict == GreedyVerdict.UNDECIDED
    clear = judge_greedy(ref=ref, cand=cand, scores=scores, logit_sigma=1e-3)
    assert (clear.verdict, clear.margin) == (GreedyVerdict.DIVERGENT, pytest.approx(0.05))


def test_printed_rounding_explains_a_margin_of_its_own_size() -> None:
    scores = TopLogprobs.from_rows([{0: -0.70, 1: -0.71}], tolerance=0.005)
    made = judge_greedy(ref=torch.tensor([0]), cand=torch.tensor([1]), scores=scores)
    assert made.sigmas == pytest.approx(0.01 / (0.005 * math.sqrt(4 / 3)))
    assert made.verdict == GreedyVerdict.TIE_BREAK


def test_texts_sampled_with_the_same_noise_are_judged_like_greedy_ones() -> None:
    verdicts: dict[str, list[GreedyVerdict]] = {"near": [], "sharp": []}
    for sequence in range(20):
        logits = logits_of(sequence).double() / 4
        noise = torch.stack(
            [
                paired_gumbel(seed=1, sequence=sequence, step=step, vocabulary=VOCABULARY)
                for step in range(STEPS)
            ]
        )
        text = gumbel_choice(logits, noise, temperature=0.8)
        for kind, cand in (("near", logits + 0.02 * logits_of(100 + sequence) / 4), ("sharp", 3 * logits)):
            made = judge_greedy(
                ref=text,
                cand=gumbel_choice(cand, noise, temperature=0.8),
                scores=logits / 0.8 + noise,
                logit_sigma=0.02 / 0.8,
            )
            verdicts[kind].append(made.verdict)
    assert GreedyVerdict.DIVERGENT not in verdicts["near"]
    assert GreedyVerdict.TIE_BREAK in verdicts["near"]
    assert verdicts["sharp"].count(GreedyVerdict.DIVERGENT) > 10


def test_scores_may_break_the_references_own_ties_in_another_way_but_not_contradict_its_text() -> None:
    logits = with_margin(logits_of(), 3, 1e-3)
    text = logits.argmax(-1)
    text[3] = logits[3].topk(2).indices[1]
    assert (
        judge_greedy(ref=text, cand=text, scores=logits, logit_sigma=0.01).verdict == GreedyVerdict.IDENTICAL
    )
    text[3] = logits[3].argmin()
    with pytest.raises(
        ComparisonError, match=r"at step 3 the reference's scores prefer another token than the"
    ):
        judge_greedy(ref=text, cand=text, scores=logits, logit_sigma=0.01)


def test_scores_after_the_first_difference_are_not_looked_at() -> None:
    logits = with_margin(logits_of(), 6, 1e-3)
    text = logits.argmax(-1)
    cand = flipped(text, logits, 6)
    logits[10:] = torch.nan
    assert judge_greedy(ref=text, cand=cand, scores=logits, logit_sigma=0.01).steps == 6


@pytest.mark.parametrize(
    ("ref", "cand", "scores", "message"),
    [
        (
            torch.zeros(0, dtype=torch.int64),
            torch.zeros(2, dtype=torch.int64),
            torch.zeros(0, 4),
            r"ref.*\[0\]",
        ),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 4), r"ref is torch\.float32"),
        (torch.tensor([0, 0]), torch.tensor([0, 0]), torch.zeros(3, 4), r"\[3, 4\].*each of the 2 steps"),
        (torch.tensor([0, 0]), torch.tensor([0]), torch.zeros(2, 4), "ref has 2 tokens and cand has 1"),
        (
            torch.tensor([0, 4]),
            torch.tensor([0, 4]),
            torch.zeros(2, 4),
            "token 4 is none of a vocabulary of 4",
        ),
    ],
    ids=["empty", "floating", "scores", "cut", "vocabulary"],
)
def test_what_can_not_be_judged_is_refused_with_its_values(
    ref: Tensor, cand: Tensor, scores: Tensor, message: str
) -> None:
    with pytest.raises(ComparisonError, match=message):
        judge_greedy(ref=ref, cand=cand, scores=scores)
