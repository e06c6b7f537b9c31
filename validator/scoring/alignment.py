"""End to end: what a candidate generates and reads, beside the reference, and what noise explains of it.

Shape legend: B = prompts, P = their tokens, T = steps, W = windows, S = their tokens, V = vocabulary.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from validator.errors import MismatchError
from validator.long_context.contexts import context_of
from validator.long_context.masks import MASKED
from validator.long_context.prompts import short_prompts
from validator.numerics.formats import format_of, weights_dtype
from validator.numerics.recipes import Recipe
from validator.scoring.asking import Answers, Questions, ask, read
from validator.scoring.baseline import StoredLogits, read_logits
from validator.scoring.choices import judge_text
from validator.scoring.distances import judge_distribution, judge_perplexity
from validator.scoring.generation import generate
from validator.scoring.noise import LogitNoise, logit_noise, noise_between
from validator.scoring.records import Plan, Scores
from validator.scoring.samplers import judge_sampler
from validator.scoring.sampling import GREEDY
from validator.scoring.texts import following, shipped_text, tokens_of, windows_of
from validator.swapping.judgement import allowed_recipe
from validator.swapping.option_runs import CandidateRun
from validator.target import Target, load_target

__all__ = ["NotGenerativeError", "Plan", "Scores", "score_target"]

_FEWEST = 2
_LATER = 2**-4


class NotGenerativeError(MismatchError):
    """The reference generates no text: it takes no tokens, returns no logits, or is not causal."""


_NO_NOISE = (
    "the reference's code can't run in simulated arithmetic, so that how far rounding carries its logits is "
    "not known, and nothing can be judged by them"
)
_NO_TARGETS = (
    "the windows of the text that is read are of one token, so that none follows another: no perplexity"
)


def score_target(
    source: str,
    *,
    plan: Plan | None = None,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    recipe: str | None = None,
    plant: str | None = None,
    baseline: Path | None = None,
    timeout_s: float | None = None,
) -> Scores:
    """Compare what a candidate generates and reads with what the reference does.

    The reference generates; the candidate follows its text, one token a step with its cache, and tells at
    each step which token it would have chosen, with the same noise where tokens are sampled. Both read a
    text.

    Args:
        source: a Python file or a checkpoint folder.
        plan: how much is asked.
        nproc: ranks to launch the candidate on, like the next three an option of `check_target`.
        device: of the candidate.
        dtype: of the candidate.
        tp: of the candidate.
        recipe: what the device may round; default the target's own, else `eager`, the looser one of those
            allowed.
        plant: a fault to plant in the candidate first.
        baseline: folder of the baseline of an earlier run of a candidate, to compare with as well.
        timeout_s: seconds that the candidate may take.

    Raises:
        NotGenerativeError: the reference generates no text.
        ValidatorError: the two sides can't be compared.
    """
    plan = plan or Plan()
    target = load_target(source, device=device, dtype=dtype, tp=tp)
    target.require("candidate")
    model = target.reference()
    try:
        questions, note = _questions(target, model, plan)
    except MismatchError as error:
        raise NotGenerativeError(str(error)) from error
    stored = None if baseline is None else read_logits(baseline)
    if stored is not None:
        questions = replace(questions, readings={**questions.readings, "baseline": stored.ids})
    run = CandidateRun(
        source=source, nproc=nproc, device=device, dtype=dtype, tp=tp, plant=plant, timeout_s=timeout_s
    )
    answers = ask(run, questions)
    judge = _Judge(model, answers, allowed_recipe(recipe, target))
    notes = [said for said in (note, answers.holders.note) if said is not None]
    return replace(judge.scores(questions, stored), note="; ".join(notes) or None)


def _questions(target: Target, model: nn.Module, plan: Plan) -> tuple[Questions, str | None]:
    """Return what is asked, and what is to be known of the text that is read."""
    limit = context_of(model).limit
    room = plan.prompt_tokens if limit is None else max(1, min(plan.prompt_tokens, limit - plan.steps))
    prompts = short_prompts(target.inputs(), count=plan.prompts, tokens=room)
    _require_causal(model, prompts)
    steps = plan.steps if limit is None else max(1, min(plan.steps, limit - prompts.shape[1]))
    texts = {
        sampling: generate(model, prompts, steps=steps, sampling=sampling)
        for sampling in (GREEDY, plan.sampling)
    }
    vocabulary = read(model, prompts[:1]).shape[-1]
    text = tokens_of(shipped_text(), model, vocabulary=vocabulary)
    size = plan.window_tokens if limit is None else min(plan.window_tokens, limit)
    questions = Questions(
        prompts=prompts,
        texts=texts,
        readings={"text": windows_of(text.ids, count=plan.windows, size=size)},
        vocabulary=vocabulary,
    )
    if text.note is None:
        return questions, None
    return questions, (
        f"the text was read as bytes, since {text.note}: both sides read the same, but its perplexity is not "
        "that of the text in the model's own tokens"
    )


def _require_causal(model: nn.Module, prompts: Tensor) -> None:
    """Refuse a model whose logits depend on later tokens: it can't be asked token by token.

    What a later token does to them is compared with their size: rounding moves them by some 2^-8 of it in the
    coarsest of formats.
    """
    if prompts.shape[1] < _FEWEST:
        return
    whole, part = read(model, prompts)[:, :-1].double(), read(model, prompts[:, :-1]).double()
    real = whole.isfinite() & part.isfinite() & (whole.abs() < MASKED)
    moved, size = (whole - part)[real].square().mean().sqrt(), whole[real].square().mean().sqrt()
    if float(moved) > _LATER * float(size):
        raise NotGenerativeError(
            f"the reference's logits depend on later tokens: its last token moves those before it by "
            f"{float(moved / size):.0%} of their size. It is no causal model, so it generates no text"
        )


class _Judge:
    """Judges a candidate's answers by the reference and its noise."""

    def __init__(self, model: nn.Module, answers: Answers, recipe: Recipe) -> None:
        self._model = model
        self._answers = answers
        self._recipe = recipe
        self._own = weights_dtype(model)
        self._cand = self._own if answers.dtype is None else getattr(torch, answers.dtype)

    def scores(self, questions: Questions, baseline: StoredLogits | None) -> Scores:
        made = tuple(questions.texts.values())
        scores = Scores(prompts=questions.prompts, texts=made, holders=self._answers.holders)
        samplers = tuple(
            judge_sampler(
                logits=self._answers.texts[number].flatten(0, 1),
                scores=given.flatten(0, 1),
                sampling=list(questions.texts)[number],
            )
            for number, given in self._answers.scores.items()
        )
        scores = replace(scores, samplers=samplers)
        scores = self._generated(scores, questions)
        scores = self._read(scores, questions.readings["text"])
        return scores if baseline is None else self._versus(scores, baseline)

    def _measured(
        self, ids: Tensor, kept: slice, dtype: torch.dtype | None
    ) -> tuple[Tensor, LogitNoise | None]:
        """Return `[W, S, V]` the reference's logits on a text, at the positions kept, and a dtype's noise."""
        ref = read(self._model, ids)[:, kept]
        runs = logit_noise(
            self._model,
            lambda: self._model(input_ids=ids),
            recipe=self._recipe,
            dtype=None if dtype == self._own else dtype,
        )
        if runs is None:
            return ref, None
        return ref, noise_between(ref.flatten(0, 1), [each[:, kept].flatten(0, 1) for each in runs])

    def _generated(self, scores: Scores, questions: Questions) -> Scores:
        rows = [torch.cat((questions.prompts, text), dim=1) for text in scores.texts]
        start = questions.prompts.shape[1] - 1
        ref, noise = self._measured(torch.cat(rows), slice(start, -1), self._cand)
        if noise is None:
            return _without(scores, _NO_NOISE)
        batch = len(questions.prompts)
        cand = torch.cat(self._answers.texts)
        choices = []
        for number, sampling in enumerate(questions.texts):
            own = slice(number * batch, (number + 1) * batch)
            choices.append(
                judge_text(
                    ref=ref[own],
                    cand=cand[own],
                    text=scores.texts[number],
                    noise=_rows_of(noise, own, ref.shape[1]),
                    sampling=sampling,
                    scores=self._answers.scores.get(number),
                )
            )
        generated = judge_distribution(
            ref=ref.flatten(0, 1), cand=cand.flatten(0, 1), noise=noise, groups=_groups(ref)
        )
        return replace(scores, choices=tuple(choices), generated=generated, noise_is_heavy=noise.is_heavy)

    def _read(self, scores: Scores, ids: Tensor) -> Scores:
        ref, noise = self._measured(ids, slice(None), self._cand)
        if noise is None:
            return _without(scores, _NO_NOISE)
        cand, groups = self._answers.readings["text"].flatten(0, 1), _groups(ref)
        ref, targets = ref.flatten(0, 1), following(ids).flatten()
        perplexity = judge_perplexity(ref=ref, cand=cand, noise=noise, groups=groups, targets=targets)
        scores = replace(
            scores,
            read=judge_distribution(ref=ref, cand=cand, noise=noise, groups=groups, targets=targets),
            perplexity=perplexity,
            noise_is_heavy=scores.noise_is_heavy or noise.is_heavy,
        )
        return scores if perplexity is not None else _without(scores, _NO_TARGETS)

    def _versus(self, scores: Scores, baseline: StoredLogits) -> Scores:
        # Both sides are rounded, each to its own format, and the coarser one bounds how far they may part.
        ref, noise = self._measured(baseline.ids, slice(None), _coarser(self._cand, baseline.dtype))
        cand = self._answers.readings["baseline"]
        if noise is None:
            return _without(scores, _NO_NOISE)
        if baseline.logits.shape != cand.shape:
            why = (
                f"the baseline {baseline.name} has logits {list(baseline.logits.shape)}, the candidate "
                f"{list(cand.shape)}"
            )
            return _without(scores, why)
        judged = judge_distribution(
            ref=ref.flatten(0, 1),
            cand=cand.flatten(0, 1),
            noise=noise,
            groups=_groups(ref),
            baseline=baseline.logits.flatten(0, 1),
            versus=f"the baseline {baseline.name}",
        )
        return replace(scores, versus_baseline=judged)


def _without(scores: Scores, why: str) -> Scores:
    """Return scores that say why a part of them is missing, once."""
    return replace(scores, unjudged=tuple(dict.fromkeys((*scores.unjudged, why))))


def _coarser(one: torch.dtype | None, other: torch.dtype) -> torch.dtype:
    """Return the dtype that has fewer significant bits."""
    return other if one is None else min(one, other, key=lambda dtype: format_of(dtype).precision)


def _groups(logits: Tensor) -> Tensor:
    """Return `[W*S]` the row of each position."""
    return torch.arange(logits.shape[0]).repeat_interleave(logits.shape[1])


def _rows_of(noise: LogitNoise, rows: slice, length: int) -> LogitNoise:
    own = slice(rows.start * length, rows.stop * length)
    return replace(noise, runs=tuple(run[own] for run in noise.runs), sigma=noise.sigma[own])
