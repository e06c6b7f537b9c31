"""What a candidate is asked, all in one run of it, on as many ranks as it takes.

Shape legend: B = sequences, P = tokens of the prompts, T = steps, W = windows, S = tokens of a window, V =
    vocabulary.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from validator.errors import MismatchError, TargetError
from validator.faults import parse
from validator.launch import launch
from validator.numerics.formats import weights_dtype
from validator.scoring.generation import all_logits, called, follow
from validator.scoring.sampling import Sampling
from validator.swapping.option_runs import CandidateRun
from validator.target import Target, load_target

__all__ = ["Answers", "Questions", "answer", "ask", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a model is asked.

    Attributes:
        prompts: `[B, P]` integer.
        texts: `[B, T]` what the reference made of them, by the sampling that made it. A candidate follows
            each: as long as it chooses the same tokens that is what it would have generated, and from the
            first other one on it still answers the same questions.
        readings: by name, `[W, S]` integer texts to be read at once.
        vocabulary: how many logits the reference has.
    """

    prompts: Tensor
    texts: dict[Sampling, Tensor]
    readings: dict[str, Tensor]
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a model answered.

    Attributes:
        texts: `[B, T, V]` logits at each step, of each of the texts in their order.
        scores: `[B, T, V]` what the port's own sampler made of the logits, by the number of each text that
            was sampled; empty where it has none.
        readings: `[W, S, V]` logits of each of the readings.
        dtype: of most of its weights, the torch name without `torch.`; None without weights.
        unequal_ranks: those that choose other tokens than rank 0.
    """

    texts: tuple[Tensor, ...]
    scores: dict[int, Tensor]
    readings: dict[str, Tensor]
    dtype: str | None
    unequal_ranks: tuple[int, ...] = ()


def ask(run: CandidateRun, questions: Questions) -> Answers:
    """Build the candidate, on ranks where it takes several, and ask it.

    Raises:
        LaunchError: a rank failed, died or took too long.
        MismatchError: the model returns no logits, or not those of the reference's vocabulary on each rank.
        ValidatorError: the target fails.
    """
    if run.nproc == 1 and run.timeout_s is None:
        target, model = _candidate(run)
        only = answer(model, target, questions)
        _require_vocabulary([only], questions.vocabulary)
        return only
    with tempfile.TemporaryDirectory(prefix="validator-") as name:
        folder, device = Path(name), (run.device or "cpu").partition(":")[0]
        launch(
            _answer_rank, (run, questions, folder), nproc=run.nproc, timeout_s=run.timeout_s, device=device
        )
        found = [_loaded(folder / f"{rank}.pt") for rank in range(run.nproc)]
    _require_vocabulary(found, questions.vocabulary)
    first = found[0]
    unequal = tuple(
        rank for rank, other in enumerate(found) if not all(map(_choose_alike, first.texts, other.texts))
    )
    return replace(first, unequal_ranks=unequal)


def _require_vocabulary(found: Sequence[Answers], vocabulary: int) -> None:
    for rank, answers in enumerate(found):
        size = answers.texts[0].shape[-1]
        if size != vocabulary:
            raise MismatchError(
                f"the candidate returns {size} logits a token on rank {rank}, and the reference "
                f"{vocabulary}: return those of the whole vocabulary on each rank, without what pads it"
            )


def _choose_alike(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Tell whether two ranks choose the same tokens; where neither has numbers, neither chooses."""
    return torch.equal(ours.nan_to_num().argmax(-1), theirs.nan_to_num().argmax(-1))


def answer(model: nn.Module, target: Target, questions: Questions) -> Answers:
    """Ask a model in this process."""
    texts, scores = [], {}
    for number, (sampling, text) in enumerate(questions.texts.items()):
        logits = follow(model, questions.prompts, text)
        texts.append(logits)
        if not sampling.is_greedy and target.has_sampler:
            steps = [_sampled(target, logits[:, step], sampling) for step in range(logits.shape[1])]
            scores[number] = torch.stack(steps, dim=1)
    dtype = weights_dtype(model)
    return Answers(
        texts=tuple(texts),
        scores=scores,
        readings={name: read(model, ids) for name, ids in questions.readings.items()},
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
    )


@torch.no_grad()
def read(model: nn.Module, ids: Tensor) -> Tensor:
    """Return `[W, S, V]` a model's logits on texts that it reads at once.

    Raises:
        MismatchError: the model returns none.
    """
    return all_logits(called(model, ids))


def _sampled(target: Target, logits: Tensor, sampling: Sampling) -> Tensor:
    """Return `[B, V]` what the port's sampler makes of a step."""
    scores = target.process_logits(
        logits.clone(), temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
    )
    if not isinstance(scores, Tensor) or scores.shape != logits.shape or not scores.is_floating_point():
        found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise TargetError(
            f"process_logits() of {target.source} returned {found}; it must return the logits that a token "
            f"is drawn from, floating and of the shape that it is given, {list(logits.shape)}, -inf where a "
            "token is cut"
        )
    return scores.detach().cpu()


def _candidate(run: CandidateRun) -> tuple[Target, nn.Module]:
    target = load_target(run.source, device=run.device, dtype=run.dtype, tp=run.tp)
    model = target.candidate()
    if run.plant is not None:
        parse(run.plant).plant(model)
    return target, model


def _answer_rank(rank: int, world_size: int, run: CandidateRun, questions: Questions, folder: Path) -> None:
    target, model = _candidate(run)
    found = answer(model, target, questions)
    named = {"texts": found.texts, "scores": found.scores, "readings": found.readings, "dtype": found.dtype}
    torch.save(named, folder / f"{rank}.pt")


def _loaded(path: Path) -> Answers:
    return Answers(**torch.load(path, weights_only=True))
