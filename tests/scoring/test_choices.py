"""Choices that differ are explained where noise explains them, and nowhere else."""

import torch
from torch import Tensor

from validator.scoring.choices import judge_text
from validator.scoring.distances import judge_distribution, judge_perplexity
from validator.scoring.generation import chosen
from validator.scoring.noise import LogitNoise, noise_between
from validator.scoring.sampling import GREEDY, Sampling, processed

BATCH, STEPS, VOCABULARY, RUNS = 4, 32, 50, 8
SIGMA = 0.02
SAMPLED = Sampling(temperature=0.7, top_p=0.9, seed=1)


def logits(seed: int = 0) -> Tensor:
    return torch.randn(BATCH, STEPS, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def noisy(ref: Tensor, seed: int, sigma: float = SIGMA) -> Tensor:
    return ref + torch.randn(ref.shape, generator=torch.Generator().manual_seed(seed)) * sigma


def noise_of(ref: Tensor, sigma: float = SIGMA) -> LogitNoise:
    flat = ref.flatten(0, 1)
    return noise_between(flat, [noisy(flat, 100 + run, sigma) for run in range(RUNS)])


def text_of(ref: Tensor, sampling: Sampling) -> Tensor:
    return torch.stack(
        [chosen(processed(ref[:, step], sampling), sampling, step=step) for step in range(STEPS)], dim=1
    )


def test_sigma_is_that_of_the_runs_and_lambda_explains_another_run() -> None:
    ref = logits()
    noise = noise_of(ref)
    assert abs(float(noise.sigma.square().mean().sqrt()) / SIGMA - 1) < 0.05
    assert not noise.is_heavy


def test_how_a_mask_is_rounded_is_no_noise_of_the_other_logits() -> None:
    flat, padding = logits().flatten(0, 1), torch.tensor([3])
    runs = [noisy(flat, 100 + run) for run in range(RUNS)]
    plain = noise_between(flat, runs)
    masked = noise_between(
        flat.index_fill(-1, padding, -1e9), [run.index_fill(-1, padding, -1.002e9) for run in runs]
    )
    others = torch.arange(VOCABULARY) != padding
    torch.testing.assert_close(masked.sigma[:, others], plain.sigma[:, others], rtol=0.1, atol=0.0)
    assert abs(masked.lam / plain.lam - 1) < 0.1


def test_runs_of_which_few_go_far_astray_have_heavy_noise_and_a_wide_lambda() -> None:
    flat = logits().flatten(0, 1)
    runs = [noisy(flat, 100 + run) for run in range(RUNS)]
    light = noise_between(flat, runs)
    runs[3][7] = noisy(flat, 9, sigma=2.0)[7]
    heavy = noise_between(flat, runs)
    assert heavy.is_heavy
    assert heavy.lam > 2 * light.lam


def test_healthy_candidates_have_no_problems_though_some_tokens_differ() -> None:
    differing = 0
    for seed in range(20):
        ref = logits(seed)
        noise = noise_of(ref)
        for sampling in (GREEDY, SAMPLED):
            found = judge_text(
                ref=ref,
                cand=noisy(ref, 1000 + seed),
                text=text_of(ref, sampling),
                noise=noise,
                sampling=sampling,
            )
            assert found.problems == ()
            differing += len(found.differing)
    assert differing > 0


def test_a_token_that_is_chosen_against_a_clear_margin_is_a_problem_at_its_step() -> None:
    ref = logits()
    cand = noisy(ref, 5)
    third = ref[2, 9].argsort(descending=True)[2]
    cand[2, 9, third] += 10
    found = judge_text(ref=ref, cand=cand, text=text_of(ref, GREEDY), noise=noise_of(ref), sampling=GREEDY)
    first = found.first_unexplained
    assert first is not None
    assert (first.sequence, first.step, first.cand_token) == (2, 9, int(third))
    assert "first at step 9 of sequence 2" in found.problems[0]


def test_a_token_that_top_p_cuts_is_no_choice_whatever_the_noise_of_sampling() -> None:
    ref = logits()
    text = text_of(ref, SAMPLED)
    # The candidate's sampler cuts nothing.
    scores = ref.to(torch.float64) / SAMPLED.temperature
    found = judge_text(
        ref=ref, cand=noisy(ref, 5), text=text, noise=noise_of(ref), sampling=SAMPLED, scores=scores
    )
    assert any(choice.cut for choice in found.differing)
    assert "top-k and top-p cut in the reference" in found.problems[0] or len(found.problems) == 1


def test_steps_without_a_distribution_are_a_problem() -> None:
    ref = logits()
    cand = noisy(ref, 5)
    cand[1, 3] = torch.nan
    found = judge_text(ref=ref, cand=cand, text=text_of(ref, GREEDY), noise=noise_of(ref), sampling=GREEDY)
    assert found.undefined == 1
    assert "from which nothing can be chosen" in found.problems[0]


def groups() -> Tensor:
    return torch.arange(BATCH).repeat_interleave(STEPS)


def targets() -> Tensor:
    return torch.randint(VOCABULARY, (BATCH * STEPS,), generator=torch.Generator().manual_seed(7))


def test_distributions_of_healthy_candidates_are_explained_against_the_reference_and_each_other() -> None:
    for seed in range(20):
        ref = logits(seed).flatten(0, 1)
        noise = noise_of(logits(seed))
        one, other = noisy(ref, 1000 + seed), noisy(ref, 2000 + seed)
        for baseline in (None, other):
            found = judge_distribution(ref=ref, cand=one, baseline=baseline, noise=noise, groups=groups())
            assert found.problems == ()
        perplexity = judge_perplexity(ref=ref, cand=one, noise=noise, groups=groups(), targets=targets())
        assert perplexity is not None
        assert perplexity.problems == ()


def test_logits_that_are_scaled_move_the_divergence_and_no_token() -> None:
    ref = logits().flatten(0, 1)
    found = judge_distribution(ref=ref, cand=ref * 1.1, noise=noise_of(logits()), groups=groups())
    assert found.figures.flips.count == 0
    assert len(found.problems) == 1
    assert found.problems[0].startswith("the KL divergence from the reference is ")


def test_perplexity_says_how_far_it_is_off_and_what_noise_explains() -> None:
    ref = logits().flatten(0, 1)
    found = judge_perplexity(
        ref=ref, cand=ref * 1.1, noise=noise_of(logits()), groups=groups(), targets=targets()
    )
    assert found is not None
    assert found.error is not None
    assert abs(found.difference) > found.limit
    assert "nats a token over 128 tokens, where noise explains" in found.problems[0]


def test_the_difference_is_the_paired_one() -> None:
    ref = logits().flatten(0, 1)
    cand = noisy(ref, 3)
    found = judge_perplexity(ref=ref, cand=cand, noise=noise_of(logits()), groups=groups(), targets=targets())
    assert found is not None
    losses = [
        torch.nn.functional.cross_entropy(side.double(), targets(), reduction="none") for side in (ref, cand)
    ]
    assert found.difference == float((losses[1] - losses[0]).mean())


def test_a_text_without_anything_to_predict_has_no_perplexity() -> None:
    ref = logits().flatten(0, 1)
    none = torch.full((BATCH * STEPS,), -100)
    assert (
        judge_perplexity(ref=ref, cand=ref, noise=noise_of(logits()), groups=groups(), targets=none) is None
    )
