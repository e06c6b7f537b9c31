"""The port computes what its reference computes: parameters, layers, texts, distributions, perplexity.

    validator run alignment --target port.py

The layers are judged one by one on the target's inputs. Then the reference continues beginnings of these
inputs, greedily and by sampling, and the port follows; both read a short text. All of it is held to what
rounding can explain, which is measured on the reference (`validator.scoring`).
"""

from pathlib import Path
from typing import Any

import pytest

from validator.errors import MismatchError
from validator.report.result import Result
from validator.scoring.alignment import NotGenerativeError, Plan, Scores, score_target
from validator.scoring.baseline import baseline_name, find_baseline, read_logits, readable_baseline
from validator.scoring.layers import blame, parameters_judged, wrong_parameters
from validator.scoring.samples import ranked, read_files
from validator.scoring.sampling import Sampling
from validator.scoring.tracing import trace_sample
from validator.target_check import check_target
from validator.testing.validation import Validation

PLAN = Plan(sampling=Sampling(temperature=0.8, top_p=0.95, seed=0), prompts=4, steps=16, windows=4)
SAMPLES = 2  # how many prompts with a bad score are looked into


def test_parameters_are_those_of_the_reference(validation: Validation) -> None:
    """Every parameter and buffer is the reference's, rounded once to the port's format."""
    result = checked(validation)
    validation.figure("parameters", parameters_judged(result))
    wrong = wrong_parameters(result)
    if wrong:
        validation.fail("\n".join(sentence for _, sentence in wrong[:5]), module=wrong[0][0])
    validation.require(parameters_judged(result) > 0, "no parameter was compared with the reference's")


def test_every_layer_computes_what_the_references_does(validation: Validation) -> None:
    """Every module, and the code between modules, computes what the reference's does, but for rounding."""
    validation.judged(checked(validation))


def test_greedy_texts_part_only_at_ties(validation: Validation) -> None:
    """Greedily, the port chooses another token only where noise explains the reference's margin."""
    _judge_text(validation, 0)


def test_sampled_texts_part_only_where_noise_explains_it(validation: Validation) -> None:
    """Sampling with the same noise, the port draws another token only where rounding explains it."""
    _judge_text(validation, 1)


def test_the_sampler_gives_the_distribution_that_it_is_asked_for(validation: Validation) -> None:
    """The port's own sampler applies temperature, top-k and top-p as they are defined."""
    found = scored(validation).samplers
    if not found:
        validation.not_applicable("the target has no process_logits, the port's own sampler")
    for sampler in found:
        validation.figure(f"sampled steps, {sampler.sampling}", sampler.steps)
        validation.require(not sampler.problems, "\n".join(sampler.problems))


def test_every_rank_holds_the_same_logits(validation: Validation) -> None:
    """Ranks that hold the logits hold the same ones, in every bit."""
    holders = scored(validation).holders
    if holders.copies == 1:
        validation.not_applicable("no two ranks hold the same logits")
    validation.figure("copies", holders.copies)
    rank = holders.unequal[0][0] if holders.unequal else None
    validation.require(holders.problem is None, holders.problem or "", rank=rank)


@pytest.mark.parametrize("text", ["generated", "read"])
def test_distributions_are_as_near_as_noise_allows(validation: Validation, text: str) -> None:
    """The distribution of the next token is as near the reference's as rounding allows."""
    scores = scored(validation)
    found = scores.generated if text == "generated" else scores.read
    if found is None:
        validation.inconclusive("; ".join(scores.unjudged))
    figures = found.figures
    validation.figure("KL", figures.kl.mean, unit="nats", limit=found.kl_limit, error=figures.kl_se)
    validation.figure("top-1 agreement", figures.top1_agreement)
    if text == "read":
        _tell_note(validation, scores)
    _require_none(validation, scores, found.problems)


def test_perplexity_is_that_of_the_reference(validation: Validation) -> None:
    """The perplexity of a short text is the reference's, but for what rounding explains."""
    scores = scored(validation)
    found = scores.perplexity
    if found is None:
        validation.inconclusive("; ".join(scores.unjudged))
    validation.figure("perplexity", found.cand)
    validation.figure("perplexity of the reference", found.ref)
    _tell_note(validation, scores)
    validation.figure(
        "difference", found.difference, unit="nats a token", limit=found.limit, error=found.error
    )
    _require_none(validation, scores, found.problems)


def test_distributions_are_those_of_the_baseline(validation: Validation) -> None:
    """The distribution of the next token is that of an earlier version, but for what rounding explains."""
    settings = validation.settings
    path = find_baseline(settings.baselines, validation.source)
    if path is None:
        if not settings.names_baselines:
            validation.not_applicable(
                "no folder of baselines is named: --baselines, in pytest --validator-baselines"
            )
        name = baseline_name(validation.source)
        validation.fail(
            f"there is no baseline {name!r} in {settings.baselines}: record it with `validator baseline "
            f"record {name} {validation.source}:candidate --baselines {settings.baselines}`, review and "
            "commit it"
        )
    try:
        read_logits(path)
    except MismatchError as error:
        validation.inconclusive(str(error))
    scores = scored(validation)
    found = scores.versus_baseline
    if found is None:
        validation.inconclusive("; ".join(scores.unjudged))
    validation.figure("KL", found.figures.kl.mean, unit="nats", limit=found.kl_limit)
    validation.require(not found.problems, "\n".join(found.problems))


def test_prompts_with_a_worse_score_are_computed_right(validation: Validation) -> None:
    """Where an evaluation scored the port worse, its layers compute what the reference's do."""
    files = validation.settings.samples
    if not files:
        validation.not_applicable("no samples are named: --samples, in pytest --validator-samples")
    samples = read_files(files)
    worse = ranked(samples)
    validation.figure("prompts", len(samples))
    validation.figure("prompts with a worse score", len(worse))
    validation.require(bool(samples), "the files of samples hold no prompt")
    undecided = []
    for sample in worse[:SAMPLES]:
        trail = trace_sample(validation.source, sample, **validation.settings.options)
        validation.require(not trail.problems, "\n".join(trail.problems), module=trail.module)
        undecided += [] if trail.undecided is None else [trail.undecided]
    if undecided:
        validation.inconclusive("\n".join(undecided))


def checked(validation: Validation) -> Result:
    """Return the check of the layers, made once."""
    return validation.shared(_check, validation.source, tuple(validation.settings.options.items()))


def scored(validation: Validation) -> Scores:
    """Return the scores of texts, made once."""
    found = readable_baseline(validation.settings.baselines, validation.source)
    try:
        scores = validation.shared(
            _score, validation.source, tuple(validation.settings.options.items()), found
        )
    except NotGenerativeError as error:
        validation.not_applicable(str(error))
    return scores


def _check(source: str, options: tuple[tuple[str, Any], ...]) -> Result:
    return check_target(source, **dict(options))


def _score(source: str, options: tuple[tuple[str, Any], ...], baseline: Path | None) -> Scores:
    return score_target(source, plan=PLAN, baseline=baseline, **dict(options))


def _judge_text(validation: Validation, number: int) -> None:
    scores = scored(validation)
    if not scores.choices:
        validation.inconclusive("; ".join(scores.unjudged))
    score = scores.choices[number]
    validation.figure("tokens", score.steps)
    validation.figure("tokens that differ", len(score.differing))
    _require_none(validation, scores, score.problems)


def _tell_note(validation: Validation, scores: Scores) -> None:
    if scores.note is not None:
        validation.figure("note", scores.note)


def _require_none(validation: Validation, scores: Scores, problems: tuple[str, ...]) -> None:
    """Fail with problems, and with the module that is behind them."""
    told, module = problems, None
    if problems:
        text, module = blame(
            validation.source,
            scores.text_at_fault(),
            lambda: checked(validation),
            **validation.settings.options,
        )
        told = (*problems, text)
    validation.require(not problems, "\n".join(told), module=module)
