"""The stages of day 0, in their order: what each asks of a port, how it finds out, and what to do."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from validator.checks.findings import Check, Finding, Verdict
from validator.day0.records import StageResult
from validator.day0.speed import measure_speed
from validator.inventory import inventory_of
from validator.progress import Progress
from validator.report import phrases
from validator.report.facts import checked
from validator.report.result import Result
from validator.target_check import check_target
from validator.testing.records import Ending, figure_text
from validator.testing.suites import run_suites

__all__ = ["STAGES", "Context", "Stage"]

_ENDINGS = {
    Verdict.ALIGNED: Ending.PASSED,
    Verdict.INCONCLUSIVE: Ending.INCONCLUSIVE,
}
_END_TO_END = (
    "test_greedy_texts_part_only_at_ties",
    "test_sampled_texts_part_only_where_noise_explains_it",
    "test_distributions_are_as_near_as_noise_allows",
    "test_perplexity_is_that_of_the_reference",
)
_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class Context:
    """What the stages share.

    Attributes:
        source: the target.
        folder: for reports.
        options: of the candidate: `nproc`, `device`, `dtype`, `tp`, `recipe`.
        card_counts: numbers of ranks to compare, such as `"1,2"`, or None for the settings' own.
        long: whether suites run their long versions.
        progress: told what is done.
    """

    source: str
    folder: Path
    options: dict[str, Any]
    card_counts: str | None = None
    long: bool = False
    progress: Progress | None = None
    _checked: Result | None = field(default=None, init=False)

    @property
    def building(self) -> dict[str, Any]:
        """What building the candidate takes."""
        return {"nproc": 1} | {
            name: self.options[name] for name in ("nproc", "device", "dtype", "tp") if name in self.options
        }

    def result(self) -> Result:
        """Return the judgement of every edge, made once."""
        if self._checked is None:
            self._checked = check_target(self.source, progress=self.progress, **self.options)
            self._checked.write_json(self.folder / "check.json")
        return self._checked

    def command(self, name: str, *words: str) -> str:
        """Return a command of ours on this target, to be pasted."""
        given = [
            word
            for key, value in self.options.items()
            if value not in (None, 1)
            for word in (f"--{key}", str(value))
        ]
        return shlex.join(["validator", name, self.source, *given, *words])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage.

    Attributes:
        name: short.
        asked: what it asks of a port, in plain words.
        run: finds out; name, question and duration are filled in by who runs it.
    """

    name: str
    asked: str
    run: Callable[["Context", "Stage"], StageResult]

    def ended(self, ending: Ending, summary: str, **more: Any) -> StageResult:
        """Return a result of this stage."""
        return StageResult(name=self.name, asked=self.asked, ending=ending, summary=summary, **more)


def _inventory(context: Context, stage: Stage) -> StageResult:
    found = inventory_of(context.source, **context.building)
    report = context.folder / "inventory.json"
    report.write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    if found.problems:
        return stage.ended(
            Ending.FAILED,
            found.problems[0],
            details=found.problems[1:],
            advice="mend how candidate() loads its weights",
            report=report.name,
        )
    return stage.ended(Ending.PASSED, found.summary, report=report.name)


def _parameters(context: Context, stage: Stage) -> StageResult:
    result = context.result()
    count = checked(result.outcome)[Check.PARAMETER]
    wrong = [finding for finding in result.findings if finding.check is Check.PARAMETER]
    if wrong:
        return stage.ended(
            Ending.FAILED,
            wrong[0].summary,
            details=_summaries(wrong[1:]),
            advice="mend how the candidate loads this weight first: all that follows depends on it",
            report="check.json",
        )
    if not count:
        return stage.ended(
            Ending.INCONCLUSIVE,
            "no parameter of the candidate could be matched with one of the reference",
            advice="write `names` in the target: candidate fqn pattern to reference fqn pattern",
            report="check.json",
        )
    return stage.ended(
        Ending.PASSED, f"{count} parameters and buffers are the reference's", report="check.json"
    )


def _layers(context: Context, stage: Stage) -> StageResult:
    result = context.result()
    ending = _ENDINGS.get(result.verdict, Ending.FAILED)
    first = result.first_divergence or next(iter(result.findings), None)
    if ending is Ending.PASSED:
        return stage.ended(
            ending, f"{len(result.outcome.judgements)} edges, all explained by rounding", report="check.json"
        )
    if first is not None:
        return stage.ended(
            Ending.FAILED,
            first.summary,
            details=_summaries([finding for finding in result.findings if finding is not first]),
            advice=f"{context.command('bisect')} names its operator; "
            f"{context.command('check', '--repro', 'repro')} writes a script that shows it with torch alone",
            report="check.json",
        )
    why = result.outcome.why_inconclusive
    return stage.ended(
        ending,
        why[0] if why else "not all of the model could be judged",
        details=tuple(why[1:]),
        advice=f"{context.command('check')} lists what was not judged, and why",
        report="check.json",
    )


def _suite(suite: str, tests: tuple[str, ...] = ()) -> Callable[[Context, Stage], StageResult]:
    """Return a stage that is a suite, or some of its tests."""

    def run(context: Context, stage: Stage) -> StageResult:
        options = {"target": context.source, "long": context.long, **context.options}
        if context.card_counts is not None:
            options["card_counts"] = context.card_counts
        names = [f"{suite}::{test}" for test in tests] or [suite]
        summary = run_suites(names, options={key: value for key, value in options.items() if value})
        summary.require_sound()
        report = context.folder / f"{suite}.json"
        report.write_text(json.dumps(summary.to_json(), indent=2) + "\n", encoding="utf-8")
        answers = summary.answers
        if answers and all(answer.ending is Ending.NOT_APPLICABLE for answer in answers):
            return stage.ended(Ending.NOT_APPLICABLE, answers[0].message, report=report.name)
        bad = [a for a in answers if a.ending not in (Ending.PASSED, Ending.NOT_APPLICABLE)]
        if summary.verdict is Ending.PASSED:
            figures = [figure_text(figure) for answer in answers for figure in answer.figures]
            passed = phrases.count(len(answers) - len(bad), "test")
            return stage.ended(
                Ending.PASSED,
                f"{passed} passed: {phrases.listing(figures, _SHOWN)}" if figures else f"{passed} passed",
                report=report.name,
            )
        messages = [answer.message for answer in bad] or list(summary.why_no_answer)
        return stage.ended(
            summary.verdict,
            messages[0].splitlines()[0],
            details=tuple(line for message in messages for line in message.splitlines())[1 : 1 + _SHOWN],
            advice=f"validator run {suite} --target {shlex.quote(context.source)} shows it alone",
            report=report.name,
        )

    return run


def _speed(context: Context, stage: Stage) -> StageResult:
    found = measure_speed(context.source, folder=context.folder, **context.building)
    rate = "" if found.tokens_per_s is None else f", {found.tokens_per_s:.4g} tokens/s"
    memory = "of the accelerator" if found.of_device else "of the process"
    return stage.ended(
        Ending.PASSED,
        f"{found.ratio:.3g} times as fast as the reference here{rate}; at most "
        f"{decimal(found.peak_bytes)} {memory}",
        details=("measured on the target's inputs, and not judged",),
    )


def _summaries(findings: list[Finding]) -> tuple[str, ...]:
    return tuple(finding.summary for finding in findings[:_SHOWN])


STAGES = (
    Stage(name="inventory", asked="Do both models have all their weights?", run=_inventory),
    Stage(name="parameters", asked="Is every weight the reference's?", run=_parameters),
    Stage(name="layers", asked="Does every layer compute what the reference's does?", run=_layers),
    Stage(
        name="end to end",
        asked="Are texts, distributions and perplexity the reference's?",
        run=_suite("alignment", _END_TO_END),
    ),
    Stage(
        name="determinism",
        asked="Is it the same from run to run, in every batch, on every number of cards?",
        run=_suite("determinism"),
    ),
    Stage(
        name="long context",
        asked="Does it hold up to the longest context, in bounded memory?",
        run=_suite("long_context"),
    ),
    Stage(name="speed", asked="How fast is it?", run=_speed),
)
