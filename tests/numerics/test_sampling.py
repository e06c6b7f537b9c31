import itertools
import math

import pytest
import torch
from scipy.stats import binom, kstest
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.sampling import gumbel_choice, paired_gumbel, sample_test


def texts(seed: int, probabilities: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Samples `[prompts * samples, places]` from `[prompts, places, V]`, and the prompt of each."""
    generator = torch.Generator().manual_seed(seed)
    prompts, places, vocabulary = probabilities.shape
    drawn = torch.multinomial(
        probabilities.reshape(-1, vocabulary), samples, replacement=True, generator=generator
    )
    made = drawn.view(prompts, places, samples).transpose(1, 2).reshape(-1, places)
    return made, torch.arange(prompts).repeat_interleave(samples)


def model(seed: int, prompts: int = 5, places: int = 8, vocabulary: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(prompts, places, vocabulary, generator=generator)).softmax(-1)


def p_value(seed: int, ours: Tensor, theirs: Tensor, samples: int = 10, permutations: int = 199) -> float:
    ref, ref_prompts = texts(2 * seed, ours, samples)
    cand, cand_prompts = texts(2 * seed + 1, theirs, samples)
    return sample_test(
        ref=ref,
        cand=cand,
        ref_prompts=ref_prompts,
        cand_prompts=cand_prompts,
        permutations=permutations,
        seed=seed,
    ).p_value


def test_noise_depends_on_its_arguments_alone_and_is_gumbels() -> None:
    first = paired_gumbel(seed=3, sequence=1, step=4, vocabulary=20_000)
    torch.rand(7)
    assert torch.equal(first, paired_gumbel(seed=3, sequence=1, step=4, vocabulary=20_000))
    others = [
        paired_gumbel(seed=seed, sequence=sequence, step=step, vocabulary=20_000)
        for seed, sequence, step in ((4, 1, 4), (3, 2, 4), (3, 1, 5), (3, 14, 4))
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack((first, other)))[0, 1])) < 6 / math.sqrt(20_000)
    assert kstest(torch.cat([first, *others]).numpy(), "gumbel_r").pvalue > 1e-4


def test_choices_have_the_models_probabilities_at_any_temperature() -> None:
    logits, draws = torch.tensor([1.0, 0.0, -1.0, -torch.inf]), 20_000
    noise = torch.stack([paired_gumbel(seed=0, sequence=0, step=s, vocabulary=4) for s in range(draws)])
    for temperature in (1.0, 0.5):
        shares = gumbel_choice(logits, noise, temperature=temperature).bincount(minlength=4) / draws
        wanted = (logits / temperature).softmax(-1)
        assert shares[3] == 0
        # Six standard deviations of a share.
        assert float((shares - wanted).abs().max()) < 6 * math.sqrt(0.25 / draws)


def test_the_same_noise_parts_two_models_no_more_often_than_the_bound() -> None:
    ours = torch.tensor([1.0, 0.6, 0.2, -1.0, -2.0], dtype=torch.float64)
    theirs = torch.tensor([0.8, 0.9, 0.1, -1.0, -1.5], dtype=torch.float64)
    p, q = ours.softmax(-1), theirs.softmax(-1)
    draws = 20_000
    noise = torch.stack([paired_gumbel(seed=9, sequence=0, step=s, vocabulary=5) for s in range(draws)])
    apart = float((gumbel_choice(ours, noise) != gumbel_choice(theirs, noise)).double().mean())
    # Both choose i with 1 / sum_j max(p_j/p_i, q_j/q_i): the first of exponential clocks on both sides.
    agree = sum(1 / float(torch.maximum(p / p[i], q / q[i]).sum()) for i in range(5))
    spread = math.sqrt(agree * (1 - agree) / draws)
    assert apart == pytest.approx(1 - agree, abs=6 * spread)
    distance = float((p - q).abs().sum() / 2)
    assert distance <= 1 - agree <= 2 * distance / (1 + distance)
    independent = 1 - float((p * q).sum())
    assert apart < independent / 4, "without the same noise they part at most steps"


def test_the_discrepancy_is_the_distance_of_the_frequencies() -> None:
    ref, cand = torch.tensor([[0, 1], [0, 2], [3, 1]]), torch.tensor([[0, 1], [5, 1]])
    zero = torch.zeros
    made = sample_test(
        ref=ref,
        cand=cand,
        ref_prompts=zero(3, dtype=torch.int64),
        cand_prompts=zero(2, dtype=torch.int64),
        permutations=99,
    )
    # Place 0: (2/3-1/2)^2 + (1/3)^2 + (1/2)^2; place 1: (2/3-1)^2 + (1/3)^2.
    assert made.mmd2 == pytest.approx(((1 / 6) ** 2 + (1 / 3) ** 2 + 0.25 + 2 / 9) / 2)


def test_the_p_value_is_that_of_all_exchanges() -> None:
    ref, cand = torch.tensor([[0], [0], [0], [1]]), torch.tensor([[1], [1], [1], [0]])
    prompts = torch.zeros(4, dtype=torch.int64)
    made = sample_test(ref=ref, cand=cand, ref_prompts=prompts, cand_prompts=prompts, permutations=20_000)
    pooled = torch.cat((ref, cand)).squeeze(-1)
    reached = [
        abs(int(pooled[list(chosen)].sum()) - 2) >= 1 for chosen in itertools.combinations(range(8), 4)
    ]
    share = sum(reached) / len(reached)
    assert made.p_value == pytest.approx(share, abs=6 * math.sqrt(share * (1 - share) / 20_000))


def test_models_that_are_alike_are_rejected_as_often_as_alpha_says() -> None:
    trials, alpha = 400, 0.05
    ours = model(0)
    rejected = sum(p_value(seed, ours, ours, permutations=99) <= alpha for seed in range(trials))
    # At most what 400 trials of probability 0.05 exceed with 1e-4, and not so few that it tests nothing.
    assert rejected <= binom.isf(1e-4, trials, alpha)
    assert rejected >= binom.ppf(1e-4, trials, alpha)


def test_prompts_that_differ_from_each_other_are_no_difference_of_the_models() -> None:
    # Unequal numbers of samples a prompt: pooling the prompts would see other frequencies on either side.
    ours = model(1, prompts=2)
    ref, ref_prompts = texts(0, ours[[0, 0, 0, 1]], 20)
    cand, cand_prompts = texts(1, ours[[0, 1, 1, 1]], 20)
    made = sample_test(
        ref=ref,
        cand=cand,
        ref_prompts=(ref_prompts == 3).long(),
        cand_prompts=(cand_prompts >= 1).long(),
        permutations=999,
    )
    assert made.p_value > 0.01
    assert (made.prompts, made.ref_samples, made.cand_samples) == (2, 80, 80)
    pooled = sample_test(
        ref=ref,
        cand=cand,
        ref_prompts=torch.zeros_like(ref_prompts),
        cand_prompts=torch.zeros_like(cand_prompts),
        permutations=999,
    )
    assert pooled.p_value == 1e-3


def test_another_temperature_is_found_with_ten_samples_a_prompt() -> None:
    ours = model(2, prompts=10)
    theirs = ours.pow(1 / 0.5)
    theirs = theirs / theirs.sum(-1, keepdim=True)
    found = sum(p_value(seed, ours, theirs) <= 0.01 for seed in range(20))
    assert found >= 19


def test_no_p_value_is_zero() -> None:
    ours = model(3)
    assert p_value(0, ours, ours.flip(-1), permutations=99) == 1 / 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ref": torch.zeros(3, 2)}, r"ref is torch\.float32"),
        ({"cand": torch.zeros(3, 4, dtype=torch.int64)}, "ref have 2 places and those of cand 4"),
        ({"ref_prompts": torch.zeros(2, dtype=torch.int64)}, r"ref_prompts.*\[2\].*the 3 samples"),
        ({"cand_prompts": torch.tensor([0, 0, 5])}, "prompt 5 has samples of one side only"),
        ({"permutations": 0}, "permutations is 0"),
    ],
    ids=["floating", "places", "prompts", "one-side", "permutations"],
)
def test_samples_that_can_not_be_exchanged_are_refused(change: dict[str, object], message: str) -> None:
    tokens, prompts = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    arguments = {"ref": tokens, "cand": tokens, "ref_prompts": prompts, "cand_prompts": prompts, **change}
    with pytest.raises(ComparisonError, match=message):
        sample_test(**arguments)  # type: ignore[arg-type]


def test_noise_of_another_vocabulary_and_greedy_temperature_are_refused() -> None:
    with pytest.raises(ComparisonError, match=r"temperature is 0\.0"):
        gumbel_choice(torch.zeros(3), torch.zeros(3), temperature=0.0)
    with pytest.raises(ComparisonError, match=r"\[4\].*\[3\]"):
        gumbel_choice(torch.zeros(4), torch.zeros(3))
