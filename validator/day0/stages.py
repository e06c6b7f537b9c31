"""The stages of day 0, in their order: what each asks of a port, how it finds out, and what to do."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from validator.checks.findings import Check, Finding, Verdict
from validator.content import find_suite
from validator.day0.records import StageResult
from validator.day0.speed import measure_speed
from validator.inventory import Inventory, inventory_of
from validator.progress import Progress
from validator.report import phrases
from validator.report.facts import checked
from validator.report.result import Result
from validator.target_check import check_target
from validator.testing.answers import Answer, Summary
from validator.testing.records import Ending, figure_text
from validator.testing.settings import Settings
from validator.testing.suites import run_suites

__all__ = ["STAGES", "Context", "Stage"]

_ENDINGS = {
    Verdict.ALIGNED: Ending.PASSED,
    Verdict.INCONCLUSIVE: Ending.INCONCLUSIVE,
}
_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class Context:
    """What the stages share.

    Attributes:
        source: the target.
        folder: for reports.
        settings: what every stage runs with.
        progress: told what is done.
    """

    source: str
    folder: Path
    settings: Settings
    progress: Progress | None = None
    _inventory: Inventory | None = field(default=None, init=False)
    _checked: Result | None = field(default=None, init=False)

    @property
    def building(self) -> dict[str, Any]:
        """What building the candidate takes."""
        return {name: self.settings.options[name] for name in ("nproc", "device", "dtype", "tp")}

    def inventory(self) -> Inventory:
        """Return what both models consist of, found out once."""
        if self._inventory is None:
            self._inventory = inventory_of(self.source, **self.building)
        return self._inventory

    def result(self) -> Result:
        """Return the judgement of every edge, made once."""
        if self._checked is None:
            self._checked = check_target(self.source, progress=self.progress, **self.settings.options)
            self._checked.write_json(self.folder / "check.json")
        return self._checked

    def command(self, name: str, *words: str) -> str:
        """Return a command of ours on this target, to be pasted."""
        given = {key: value for key, value in self.settings.options.items() if (key, value) != ("nproc", 1)}
        return shlex.join(["validator", name, self.source, *_words(given), *words])

    def run_options(self) -> dict[str, Any]:
        """Return what suites run with, by key: all of it, so that they ask what the other stages did."""
        counts = ",".join(map(str, self.settings.card_counts)) if self.settings.names_card_counts else None
        long = self.settings.long or None
        return {"target": self.source, **self.settings.options, "card_counts": counts, "long": long}


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
    found = context.inventory()
    report = context.folder / "inventory.json"
    report.write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    if found.problems:
        return stage.ended(
            Ending.FAILED,
            found.problems[0],
            details=found.problems[1:],
            advice="mend how this model's weights are loaded: "
            + " and ".join(f"{side.side}()" for side in found.sides if side.problems and side.rank == 0)
            if not Path(context.source).is_dir()
            else "look at the checkpoint's files: they do not fill the model",
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
    alone = _without_partner(context.inventory(), result)
    unchecked = {reason.module for reason in result.outcome.unchecked}
    unjudged = [name for name in alone if name.rpartition(".")[0] in unchecked]
    if unjudged:
        return stage.ended(
            Ending.INCONCLUSIVE,
            f"{phrases.count(len(unjudged), 'parameter')} of the reference could not be compared: "
            f"{phrases.listing(unjudged, _SHOWN)}",
            advice="write `names` or `layout` in the target, so that each has a partner in the candidate",
            report="check.json",
        )
    beside = (
        f"; {phrases.count(len(alone), 'parameter')} without a partner of that name, judged by what "
        f"the module computes: {phrases.listing(alone, _SHOWN)}"
        if alone
        else ""
    )
    return stage.ended(
        Ending.PASSED, f"{count} parameters and buffers are the reference's{beside}", report="check.json"
    )


def _without_partner(inventory: Inventory, result: Result) -> list[str]:
    """Return the parameters of the reference that were compared under none of their names."""
    compared = {
        f"{judgement.module}.{judgement.path}".removeprefix(".")
        for judgement in result.outcome.judgements
        if judgement.check is Check.PARAMETER
    }
    side = inventory.reference
    return [name for name in side.parameters if compared.isdisjoint((name, *side.shared.get(name, ())))]


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


def _suite(suite: str) -> Callable[[Context, Stage], StageResult]:
    """Return a stage that is a suite that ships, whatever is called so where the command was typed."""

    def run(context: Context, stage: Stage) -> StageResult:
        options = context.run_options()
        summary = run_suites([str(find_suite(suite))], options=options)
        summary.require_sound()
        report = context.folder / f"{suite}.json"
        report.write_text(json.dumps(summary.to_json(), indent=2) + "\n", encoding="utf-8")
        answers = summary.answers
        if answers and all(answer.ending is Ending.NOT_APPLICABLE for answer in answers):
            return stage.ended(Ending.NOT_APPLICABLE, answers[0].message, report=report.name)
        if summary.verdict is Ending.PASSED:
            passed = [answer for answer in answers if answer.ending is Ending.PASSED]
            left = len(answers) - len(passed)
            beside = f", {left} not applicable" if left else ""
            return stage.ended(
                Ending.PASSED,
                f"{phrases.count(len(passed), 'test')} passed{beside}",
                details=tuple(map(_figures, passed)),
                report=report.name,
            )
        first, *others = _reasons(summary)
        return stage.ended(
            summary.verdict,
            first,
            details=tuple(others[:_SHOWN]),
            advice=f"{shlex.join(['validator', 'run', suite, *_words(options)])} shows it alone",
            report=report.name,
        )

    return run


def _figures(answer: Answer) -> str:
    """Return what a test asked and the figures that it told, in a line."""
    figures = "; ".join(figure_text(figure) for figure in answer.figures[:_SHOWN])
    return f"{answer.asked} {figures}".rstrip()


def _reasons(summary: Summary) -> list[str]:
    """Return why a suite has its verdict, line by line: the tests that ended so first."""
    told = [answer for answer in summary.answers if answer.ending is summary.verdict]
    messages = [answer.message or answer.asked for answer in told] or list(summary.why_no_answer)
    lines = [line for message in messages for line in message.splitlines() if line.strip()]
    return lines or [summary.sentence]


def _words(options: dict[str, Any]) -> list[str]:
    """Return options as a command line has them."""
    words: list[str] = []
    for key, value in options.items():
        if value is not None:
            words += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def _speed(context: Context, stage: Stage) -> StageResult:
    found = measure_speed(context.source, **context.building)
    report = context.folder / "speed.json"
    report.write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    rate = "" if found.tokens_per_s is None else f", {found.tokens_per_s:.4g} tokens/s"
    memory = "on the accelerator" if found.of_device else "in the process"
    return stage.ended(
        Ending.PASSED,
        f"{found.ratio:.3g} times as fast as the reference here{rate}; at most "
        f"{decimal(found.peak_bytes)} {memory} of a rank",
        details=(
            f"forward passes on the target's inputs, medians of {len(found.candidate_s)}; the reference "
            "first, then the candidate, in processes of their own; told, and not judged",
            f"to keep them: validator baseline record NAME --figures {shlex.quote(str(report))}",
        ),
        report=report.name,
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
        run=_suite("alignment"),
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
