"""What a candidate is asked, all in one run of it, on as many ranks as it takes.

Shape legend: B = sequences, P = tokens of the prompts, T = steps, W = windows, S = tokens of a window, V =
    vocabulary.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
        unequal_ranks: those that choose other tokens than the lowest rank with logits.
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
        MismatchError: the model returns no logits, or on no rank those of the reference's vocabulary.
        ValidatorError: the target fails.
    """
    if run.nproc == 1 and run.timeout_s is None:
        target, model = _candidate(run)
        only = answer(model, target, questions)
        return _whole({0: only}, questions.vocabulary)[0]
    with tempfile.TemporaryDirectory(prefix="validator-") as name:
        folder, device = Path(name), (run.device or "cpu").partition(":")[0]
        launch(
            _answer_rank, (run, questions, folder), nproc=run.nproc, timeout_s=run.timeout_s, device=device
        )
        loaded = {rank: _loaded(folder / f"{rank}.pt") for rank in range(run.nproc)}
    found = {rank: answers for rank, answers in loaded.items() if isinstance(answers, Answers)}
    if not found:
        raise MismatchError(str(loaded[0]))
    whole = _whole(found, questions.vocabulary)
    first = next(iter(whole.values()))
    unequal = tuple(
        rank for rank, other in whole.items() if not all(map(_choose_alike, first.texts, other.texts))
    )
    return replace(first, unequal_ranks=unequal)


def _whole(found: Mapping[int, Answers], vocabulary: int) -> dict[int, Answers]:
    """Return the answers of ranks that have logits of the whole vocabulary.

    Others are stages of a pipeline before the last, or leave their part to the rank that gathers it.
    """
    sizes = {rank: answers.texts[0].shape[-1] for rank, answers in found.items()}
    whole = {rank: answers for rank, answers in found.items() if sizes[rank] == vocabulary}
    if not whole:
        rank, size = next(iter(sizes.items()))
        raise MismatchError(
            f"the candidate returns {size} logits a token on rank {rank}, and the reference {vocabulary}: "
            "return those of the whole vocabulary on one rank at least, without what pads it"
        )
    return whole


def _choose_alike(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Tell whether two ranks choose the same tokens; where neither has numbers, neither chooses."""
    return torch.equal(ours.nan_to_num().argmax(-1), theirs.nan_to_num().argmax(-1))


def answer(model: nn.Module, target: Target, questions: Questions) -> Answers:
    """Ask a model in this process.

    Raises:
        MismatchError: it returns no logits. All has been asked by then: other ranks may wait for this one.
    """
    missing: list[MismatchError] = []

    def asked(question: Callable[[], Tensor]) -> list[Tensor]:
        try:
            return [question()]
        except MismatchError as error:
            missing.append(error)
            return []

    texts = [
        logits
        for text in questions.texts.values()
        for logits in asked(partial(follow, model, questions.prompts, text))
    ]
    readings = {
        name: logits
        for name, ids in questions.readings.items()
        for logits in asked(partial(read, model, ids))
    }
    if missing:
        raise missing[0]
    dtype = weights_dtype(model)
    return Answers(
        texts=tuple(texts),
        scores={
            number: _sampled(target, logits, sampling)
            for number, (sampling, logits) in enumerate(zip(questions.texts, texts, strict=True))
            # What a stage hands on may look like logits of another vocabulary.
            if not sampling.is_greedy and target.has_sampler and logits.shape[-1] == questions.vocabulary
        },
        readings=readings,
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
    """Return `[B, T, V]` what the port's sampler makes of the logits of each step."""
    steps = [_sampled_step(target, logits[:, step], sampling) for step in range(logits.shape[1])]
    return torch.stack(steps, dim=1)


def _sampled_step(target: Target, logits: Tensor, sampling: Sampling) -> Tensor:
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
    try:
        found = answer(model, target, questions)
    except MismatchError as error:  # another rank may have logits
        torch.save({"error": str(error)}, folder / f"{rank}.pt")
        return
    named = {"texts": found.texts, "scores": found.scores, "readings": found.readings, "dtype": found.dtype}
    torch.save(named, folder / f"{rank}.pt")


def _loaded(path: Path) -> Answers | str:
    """Return a rank's answers, or why it has none."""
    named = torch.load(path, weights_only=True)
    return named["error"] if "error" in named else Answers(**named)
