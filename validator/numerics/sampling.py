"""Sampled texts of two models: the same noise on both sides where it can be set, else a test of many samples.

Shape legend: R = samples of the reference, C = samples of the candidate, L = tokens of a sample, V =
    vocabulary.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.errors import ComparisonError

__all__ = ["SampleTest", "gumbel_choice", "paired_gumbel", "sample_test"]

_TINY = 2.0**-53


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTest:
    """A permutation test that two models sample from the same distribution.

    Attributes:
        mmd2: squared maximum mean discrepancy, averaged over prompts: the squared distance of the frequencies
            of tokens at each place of the text, averaged over places. Chance alone makes it positive.
        p_value: probability of so large an `mmd2` if both sides sample alike; at least
            1/(permutations + 1). What follows one chosen before the test, such as 1e-3, is a finding.
        permutations: how many were drawn.
        prompts: how many there are.
        ref_samples, cand_samples: how many each side has.
    """

    mmd2: float
    p_value: float
    permutations: int
    prompts: int
    ref_samples: int
    cand_samples: int


def paired_gumbel(*, seed: int, sequence: int, step: int, vocabulary: int) -> Tensor:
    """Draw the noise of one step of sampling, the same wherever it is drawn.

    It depends on the arguments alone: not on the device, the batch, the rank, or what was drawn before, so
    that both sides of a comparison have it whatever order they compute in. A rank that holds a part of the
    vocabulary takes that part of the whole.

    Args:
        seed: of the run.
        sequence: which text, at least 0.
        step: which token of it, at least 0.
        vocabulary: how many tokens.

    Returns:
        `[V]` float64 on the CPU, independent standard Gumbel variables.

    Source:
        Gumbel-max: Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014.
    """
    key = hashlib.sha256(f"{seed}/{sequence}/{step}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    uniform = torch.rand(vocabulary, dtype=torch.float64, generator=generator)
    return -(-uniform.clamp(_TINY, 1 - _TINY).log()).log()


def gumbel_choice(logits: Tensor, noise: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Sample a token: the greatest of `logits / temperature + noise`.

    Two models whose distributions differ by total variation d choose differently with a probability of at
    most 2d/(1+d). Judge a difference as one of greedy texts, `judge_greedy(scores=logits / temperature +
    noise)` with the logits' sigma over the temperature.

    Args:
        logits: `[..., V]` floating; -inf where a token is masked.
        noise: `[..., V]` of `paired_gumbel`.
        temperature: positive.

    Returns:
        `[...]` int64.

    Raises:
        ComparisonError: the temperature is not positive, or the noise is for another vocabulary.

    Source:
        The bound: Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative
        decoding", arXiv 2408.07978.
    """
    if not temperature > 0:
        raise ComparisonError(f"temperature is {temperature!r}: sampling needs a positive one; 0 is greedy")
    if logits.shape[-1] != noise.shape[-1]:
        raise ComparisonError(
            f"logits have shape {list(logits.shape)} and noise {list(noise.shape)}: their "
            "vocabularies must be equal"
        )
    return (logits.detach().to(torch.float64) / temperature + noise.to(logits.device)).argmax(dim=-1)


def sample_test(
    *,
    ref: Tensor,
    cand: Tensor,
    ref_prompts: Tensor,
    cand_prompts: Tensor,
    permutations: int = 9999,
    seed: int = 0,
) -> SampleTest:
    """Test whether two models sample from the same distribution, by exchanging samples of the same prompt.

    The kernel counts the places at which two samples of the same prompt have the same token. So it sees what
    changes how often a token stands at a place; not a change of correlations alone.

    Args:
        ref: `[R, L]` integer, samples of the reference; shorter ones filled up with a token that no text has,
            such as -1.
        cand: `[C, L]` integer, samples of the candidate.
        ref_prompts: `[R]` integer, the prompt of each sample.
        cand_prompts: `[C]` integer; the same prompts, each with at least one sample on either side.
        permutations: how many to draw; the least p-value is about its reciprocal.
        seed: of the permutations.

    Returns:
        The test. Under the hypothesis its p-value is at most any alpha with a probability of at most alpha,
        whatever the models are and however few samples there are.

    Raises:
        ComparisonError: shapes don't fit, or a prompt lacks samples of one side.

    Source:
        Gao, Liang and Guestrin, "Model equality testing: which model is this API serving?", arXiv 2410.20247.
        Validity of the p-value: Phipson and Smyth, "Permutation p-values should never be zero", Statistical
        Applications in Genetics and Molecular Biology 9 (2010).
    """
    _demand_samples(ref, cand, ref_prompts, cand_prompts)
    if permutations < 1:
        raise ComparisonError(f"permutations is {permutations!r}: draw at least one")
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.unique(ref_prompts)
    statistics = torch.zeros(permutations + 1, dtype=torch.float64)
    for prompt in prompts:
        ours, theirs = ref[ref_prompts == prompt].cpu(), cand[cand_prompts == prompt].cpu()
        statistics += _discrepancies(ours, theirs, permutations, generator)
    # What differs by rounding alone counts as reached.
    reached = int((statistics[1:] >= statistics[0] - 1e-9 * statistics[0].abs() - 1e-12).sum())
    return SampleTest(
        mmd2=float(statistics[0]) / prompts.numel(),
        p_value=(1 + reached) / (1 + permutations),
        permutations=permutations,
        prompts=prompts.numel(),
        ref_samples=ref.shape[0],
        cand_samples=cand.shape[0],
    )


def _discrepancies(ours: Tensor, theirs: Tensor, permutations: int, generator: torch.Generator) -> Tensor:
    """`[1 + permutations]` squared discrepancies of one prompt's samples, as they are and permuted."""
    pooled = torch.cat((ours, theirs)).to(torch.int64)
    samples, length = pooled.shape
    alike = torch.zeros(samples, samples, dtype=torch.float64)
    for place in range(length):
        alike += pooled[:, place, None] == pooled[None, :, place]
    # One row of weights for each way to tell the sides apart; the first is the true one.
    weights = torch.cat(
        (
            torch.full((ours.shape[0],), 1 / ours.shape[0], dtype=torch.float64),
            torch.full((theirs.shape[0],), -1 / theirs.shape[0], dtype=torch.float64),
        )
    )
    shuffled = torch.rand(permutations, samples, generator=generator).argsort(dim=-1)
    rows = torch.cat((weights[None], weights[shuffled]))
    return ((rows @ alike) * rows).sum(dim=-1) / length


def _demand_samples(ref: Tensor, cand: Tensor, ref_prompts: Tensor, cand_prompts: Tensor) -> None:
    for name, samples, prompts in (("ref", ref, ref_prompts), ("cand", cand, cand_prompts)):
        if samples.ndim != 2 or samples.numel() == 0 or samples.dtype.is_floating_point:
            raise ComparisonError(
                f"{name} is {samples.dtype} of shape {list(samples.shape)}: give integer tokens [samples, "
                "places]"
            )
        if tuple(prompts.shape) != (samples.shape[0],) or prompts.dtype.is_floating_point:
            raise ComparisonError(
                f"{name}_prompts is {prompts.dtype} of shape {list(prompts.shape)}: give one integer "
                f"for each of the {samples.shape[0]} samples"
            )
    if ref.shape[1] != cand.shape[1]:
        raise ComparisonError(
            f"samples of ref have {ref.shape[1]} places and those of cand {cand.shape[1]}: cut both to the "
            "same length, and fill shorter ones up with -1"
        )
    lonely = sorted(set(ref_prompts.tolist()) ^ set(cand_prompts.tolist()))
    if lonely:
        raise ComparisonError(
            f"prompt {lonely[0]} has samples of one side only: there is nothing to exchange them with"
        )
