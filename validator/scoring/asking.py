"""What a candidate is asked, all in one run of it, on as many ranks as it takes.

Shape legend: B = sequences, P = tokens of the prompts, T = steps, W = windows, S = tokens of a window, V =
    vocabulary.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from validator.errors import MismatchError, TargetError
from validator.faults import parse
from validator.launch import launch
from validator.long_context.shares import ALONE, Holders, Share, holders, modules_of
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
        modules: what this rank computes with, as `modules_of` tells it.
        holders: the ranks whose logits these are.
    """

    texts: tuple[Tensor, ...]
    scores: dict[int, Tensor]
    readings: dict[str, Tensor]
    dtype: str | None
    modules: str
    holders: Holders = ALONE


def ask(run: CandidateRun, questions: Questions) -> Answers:
    """Build the candidate, on ranks where it takes several, and ask it.

    Raises:
        LaunchError: a rank failed, died or took too long.
        MismatchError: the model returns no logits, or neither one rank nor several together those of the
            reference's vocabulary, or which they are can't be told.
        ValidatorError: the target fails.
    """
    if run.nproc == 1 and run.timeout_s is None:
        target, model = _candidate(run)
        only = answer(model, target, questions)
        return _whole({0: only}, questions)
    with tempfile.TemporaryDirectory(prefix="validator-") as name:
        folder, device = Path(name), (run.device or "cpu").partition(":")[0]
        launch(
            _answer_rank, (run, questions, folder), nproc=run.nproc, timeout_s=run.timeout_s, device=device
        )
        loaded = {rank: _loaded(folder / f"{rank}.pt") for rank in range(run.nproc)}
    found = {rank: answers for rank, answers in loaded.items() if isinstance(answers, Answers)}
    if not found:
        raise MismatchError(str(loaded[0]))
    whole = _whole(found, questions)
    if len(whole.holders.ranks) == 1:
        return whole
    target = load_target(run.source, device=run.device, dtype=run.dtype, tp=run.tp)
    return replace(whole, scores=_scores(target, questions, whole.texts))


def _whole(found: Mapping[int, Answers], questions: Questions) -> Answers:
    """Return the answers of the ranks whose logits are the model's, side by side where each has a part."""
    vocabulary = questions.vocabulary
    shares = {
        rank: Share.of((*each.texts, *each.readings.values()), vocabulary=vocabulary, modules=each.modules)
        for rank, each in found.items()
    }
    held = holders(shares, vocabulary=vocabulary)
    parts = [found[rank] for rank in held.ranks]
    for name, ids in questions.readings.items():
        shape = parts[0].readings[name].shape[:2]
        if shape != ids.shape:
            raise MismatchError(
                f"the candidate returns logits of {list(shape)} tokens on rank {held.ranks[0]} where it is "
                f"given {list(ids.shape)}: return those of all tokens on one rank at least"
            )
    return replace(
        parts[0],
        texts=tuple(
            torch.cat(texts, dim=-1)[..., :vocabulary]
            for texts in zip(*(part.texts for part in parts), strict=True)
        ),
        readings={
            name: torch.cat([part.readings[name] for part in parts], dim=-1)[..., :vocabulary]
            for name in parts[0].readings
        },
        holders=held,
    )


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
        scores=_scores(target, questions, texts),
        readings=readings,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        modules=modules_of(model),
    )


@torch.no_grad()
def read(model: nn.Module, ids: Tensor) -> Tensor:
    """Return `[W, S, V]` a model's logits on texts that it reads at once.

    Raises:
        MismatchError: the model returns none.
    """
    return all_logits(called(model, ids))


def _scores(target: Target, questions: Questions, texts: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return what the port's sampler makes of logits of the whole vocabulary, by the number of each text."""
    return {
        number: _sampled(target, logits, sampling)
        for number, (sampling, logits) in enumerate(zip(questions.texts, texts, strict=True))
        # What a stage hands on may look like logits of another vocabulary.
        if not sampling.is_greedy and target.has_sampler and logits.shape[-1] == questions.vocabulary
    }


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
    named = {
        "texts": found.texts,
        "scores": found.scores,
        "readings": found.readings,
        "dtype": found.dtype,
        "modules": found.modules,
    }
    torch.save(named, folder / f"{rank}.pt")


def _loaded(path: Path) -> Answers | str:
    """Return a rank's answers, or why it has none."""
    named = torch.load(path, weights_only=True)
    return named["error"] if "error" in named else Answers(**named)
