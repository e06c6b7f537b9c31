"""From a bad score to a layer: the first token that noise does not explain, and the module behind it.

Shape legend: N = tokens of a prompt, T = steps, V = vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validator.errors import UsageError
from validator.report.result import Result
from validator.scoring.asking import Questions, ask, read
from validator.scoring.choices import Choice, judge_text
from validator.scoring.generation import generate
from validator.scoring.localising import check_tokens
from validator.scoring.noise import logit_noise, noise_between
from validator.scoring.samples import Sample
from validator.scoring.sampling import GREEDY
from validator.scoring.texts import positions_limit, tokens_of
from validator.swapping.judgement import allowed_recipe, weights_dtype
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
        result: the check of the layers on the prompt up to there.
    """

    sample: Sample
    tokens: int
    first: Choice | None
    judged: bool
    result: Result

    @property
    def problems(self) -> tuple[str, ...]:
        """What the candidate does otherwise on this prompt, in sentences; none where nothing was found."""
        sample = self.sample
        scored = (
            f"{sample.name}: {sample.metric} {abs(sample.cand):g}, and the reference's is {abs(sample.ref):g}"
        )
        where = self._where()
        finding = self.result.first_divergence or next(iter(self.result.findings), None)
        if finding is not None:
            return (f"{scored}. {where}{finding.summary}",)
        return (f"{scored}. {where}No layer is wrong on this prompt",) if self.first is not None else ()

    @property
    def module(self) -> str | None:
        """The module to blame, or None."""
        finding = self.result.first_divergence or next(iter(self.result.findings), None)
        return None if finding is None else finding.module

    def _where(self) -> str:
        if self.first is None:
            return ""
        at = self.first.step + 1
        part = f"token {at} of the prompt" if at < self.tokens else f"generated token {at - self.tokens}"
        return (
            f"The first token that noise does not explain is {part}: {self.first.cand_token} for "
            f"{self.first.ref_token}, against a margin of {self.first.margin:.3g} logits. "
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
        ValidatorError: the two sides can't be compared.
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
        Questions(prompts=prompt, texts={GREEDY: text}, readings={"prompt": prompt}),
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
    result = check_tokens(source, upto, recipe=recipe, **options)
    return Trail(sample=sample, tokens=prompt.shape[1], first=first, judged=judged, result=result)


def _tokens(model: nn.Module, sample: Sample) -> Tensor:
    """Return `[1, N]` the tokens of a prompt, with the continuation that was scored."""
    if sample.input_ids is not None:
        ids = torch.tensor(sample.input_ids, dtype=torch.int64)
    else:
        vocabulary = read(model, torch.zeros(1, 1, dtype=torch.int64)).shape[-1]
        ids = tokens_of(f"{sample.prompt or ''}{sample.continuation}", model, vocabulary=vocabulary)
    if not len(ids):
        raise UsageError(f"the prompt of {sample.name} is empty: there is nothing to ask the models")
    return ids[None]


def _room(model: nn.Module, prompt: Tensor, steps: int) -> int:
    limit, length = positions_limit(model), prompt.shape[1]
    if limit is not None and length >= limit:
        raise UsageError(
            f"the prompt has {length} tokens, and the model {limit} positions: cut it to {limit - 1} or "
            "fewer, or take another one"
        )
    return steps if limit is None else max(1, min(steps, limit - length))
