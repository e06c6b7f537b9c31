"""From a bad score to a layer: the first token that noise does not explain, and the module behind it.

Shape legend: N = tokens of a prompt, T = steps, V = vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.checks.findings import Finding, Verdict
from validator.errors import UsageError, ValidatorError
from validator.long_context.contexts import context_of
from validator.numerics.formats import weights_dtype
from validator.report.result import Result
from validator.scoring.asking import Questions, ask, read
from validator.scoring.choices import Choice, judge_text
from validator.scoring.generation import generate
from validator.scoring.localising import check_tokens
from validator.scoring.noise import logit_noise, noise_between
from validator.scoring.samples import Sample
from validator.scoring.sampling import GREEDY
from validator.scoring.texts import tokens_of
from validator.swapping.judgement import allowed_recipe
from validator.swapping.option_runs import CandidateRun
from validator.target import load_target

__all__ = ["Trail", "trace_sample"]

STEPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """What stands behind a score.

    Attributes:
        sample: the prompt, and both scores.
        tokens: how many the prompt has.
        first: the first token that the candidate would choose otherwise beyond what noise explains, or None;
            its step counts from the second token of the prompt, through what is generated after it.
        judged: whether noise is known, so that tokens were judged.
        result: the check of the layers on the prompt up to there; None where that failed.
        failure: why it failed, or None.
    """

    sample: Sample
    tokens: int
    first: Choice | None
    judged: bool
    result: Result | None
    failure: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """What the candidate does otherwise on this prompt, in sentences; none where nothing was found."""
        if self.first is None and self._finding is None:
            return ()
        found = [] if self.first is None else [self._where(self.first)]
        if self._finding is not None:
            found.append(self._finding.summary)
        else:
            found.append(self._open or "No layer is wrong on this prompt")
        return (". ".join((self._scored, *found)),)

    @property
    def undecided(self) -> str | None:
        """Why it is not known whether the candidate is right on this prompt, in a sentence; else None."""
        if self.problems:
            return None
        why = [] if self.judged else ["No token was judged, since the reference's noise can't be measured"]
        why += [] if self._open is None else [self._open]
        return ". ".join((self._scored, *why)) if why else None

    @property
    def module(self) -> str | None:
        """The module to blame, or None."""
        return None if self._finding is None else self._finding.module

    @property
    def _finding(self) -> Finding | None:
        if self.result is None:
            return None
        return self.result.first_divergence or next(iter(self.result.findings), None)

    @property
    def _open(self) -> str | None:
        """Why nothing is known of the layers, or None."""
        if self.result is None:
            return f"The layers could not be checked: {self.failure}"
        if self.result.verdict is not Verdict.INCONCLUSIVE:
            return None
        return f"The check of the layers is inconclusive: {'; '.join(self.result.outcome.why_inconclusive)}"

    @property
    def _scored(self) -> str:
        sample = self.sample
        return (
            f"{sample.name}: {sample.metric} {abs(sample.cand):g}, and the reference's is {abs(sample.ref):g}"
        )

    def _where(self, first: Choice) -> str:
        at = first.step + 1
        part = f"token {at} of the prompt" if at < self.tokens else f"generated token {at - self.tokens}"
        return (
            f"The first token that noise does not explain is {part}: {first.cand_token} for "
            f"{first.ref_token}, against a margin of {first.margin:.3g} logits"
        )


def trace_sample(
    source: str,
    sample: Sample,
    *,
    steps: int = STEPS,
    nproc: int = 1,
    device: str | None = None,
    dtype: str | None = None,
    tp: int | None = None,
    recipe: str | None = None,
    plant: str | None = None,
    timeout_s: float | None = None,
) -> Trail:
    """Find the token at which a candidate goes astray on a prompt, and check the layers up to it.

    Both sides read the prompt and the continuation that was scored, or what the reference generates. At each
    position their most probable tokens are compared.

    Args:
        source: a Python file or a checkpoint folder.
        sample: the prompt.
        steps: how many tokens are generated after it.
        nproc: ranks to launch the candidate on; the others are options of `check_target` too.
        device: of the candidate.
        dtype: of the candidate.
        tp: of the candidate.
        recipe: what the device may round.
        plant: a fault to plant in the candidate first.
        timeout_s: seconds that a run of the candidate may take.

    Raises:
        UsageError: the prompt is empty, or longer than what the model can read.
        ValidatorError: a side can't be run.
    """
    options: dict[str, Any] = {
        "nproc": nproc,
        "device": device,
        "dtype": dtype,
        "tp": tp,
        "plant": plant,
        "timeout_s": timeout_s,
    }
    target = load_target(source, device=device, dtype=dtype, tp=tp)
    target.require("candidate")
    model = target.reference()
    prompt = _tokens(model, sample)
    text = generate(model, prompt, steps=_room(model, prompt, steps), sampling=GREEDY)
    whole = torch.cat((prompt, text), dim=1)
    ref = read(model, whole)[:, :-1]
    answers = ask(
        CandidateRun(source=source, **options),
        Questions(
            prompts=prompt, texts={GREEDY: text}, readings={"prompt": prompt}, vocabulary=ref.shape[-1]
        ),
    )
    # The prompt is read at once, what follows it token by token.
    cand = torch.cat((answers.readings["prompt"][:, :-1], answers.texts[0]), dim=1)
    own = weights_dtype(model)
    theirs = None if answers.dtype is None else getattr(torch, answers.dtype)
    runs = logit_noise(
        model,
        lambda: model(input_ids=whole),
        recipe=allowed_recipe(recipe, target),
        dtype=None if theirs == own else theirs,
    )
    first, judged = None, runs is not None
    if runs is not None:
        noise = noise_between(ref[0], [run[0, :-1] for run in runs])
        # Teacher-forced: what each side would say next, whatever the text goes on with.
        score = judge_text(ref=ref, cand=cand, text=ref.argmax(-1), noise=noise, sampling=GREEDY)
        first = score.first_unexplained
    upto = whole if first is None else whole[:, : first.step + 1]
    result, failure = None, None
    try:
        result = check_tokens(source, upto, recipe=recipe, **options)
    except ValidatorError as error:  # what the tokens say stands
        failure = str(error)
    return Trail(
        sample=sample, tokens=prompt.shape[1], first=first, judged=judged, result=result, failure=failure
    )


def _tokens(model: nn.Module, sample: Sample) -> Tensor:
    """Return `[1, N]` the tokens of a prompt, with the continuation that was scored."""
    if sample.input_ids is not None:
        ids = torch.tensor(sample.input_ids, dtype=torch.int64)
    else:
        vocabulary = read(model, torch.zeros(1, 1, dtype=torch.int64)).shape[-1]
        found = tokens_of(f"{sample.prompt or ''}{sample.continuation}", model, vocabulary=vocabulary)
        if found.note is not None:
            raise UsageError(
                f"the prompt of {sample.name} is text, and {found.note}: save the tokenizer beside the "
                "checkpoint, or write the tokens that were scored into the file of samples, as input_ids"
            )
        ids = found.ids
    if not len(ids):
        raise UsageError(f"the prompt of {sample.name} is empty: there is nothing to ask the models")
    return ids[None]


def _room(model: nn.Module, prompt: Tensor, steps: int) -> int:
    limit, length = context_of(model).limit, prompt.shape[1]
    if limit is not None and length >= limit:
        raise UsageError(
            f"the prompt has {length} tokens, and the model {limit} positions: cut it to {limit - 1} or "
            "fewer, or take another one"
        )
    return steps if limit is None else max(1, min(steps, limit - length))
