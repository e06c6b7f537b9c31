"""The steps of a search put together as one outcome, in the reference's execution order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from validator.bisecting.path import Claim
from validator.bisecting.survey import Survey
from validator.checks.engine import roll_up
from validator.checks.findings import Check, Finding, Judgement, Outcome, Verdict
from validator.checks.stepping import told_by_step

__all__ = ["Timeline", "first_divergent", "merged", "without"]

_Key = tuple[float, float, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Tells when things happened in the reference's run.

    Attributes:
        survey: of that run.
        places: of modules, in the order of their first calls.
    """

    survey: Survey
    places: Mapping[str, int]

    @classmethod
    def of(cls, survey: Survey) -> "Timeline":
        """Return the times of a run."""
        return cls(survey=survey, places={fqn: place for place, fqn in enumerate(survey.modules)})

    def moment(self, item: Finding | Judgement) -> float:
        """Return when the reference had what something was said of; of a parameter, when it is used."""
        if item.check is Check.PARAMETER:
            return self._of(self.survey.starts, item.module, 0)
        if item.check is Check.INPUT:
            return self._of(self.survey.starts, item.module, item.call)
        if item.into is not None:
            return self._of(self.survey.starts, item.into, item.call)
        return self._of(self.survey.ends, item.module, item.call)

    def end(self, module: str) -> float:
        """Return when the first call of a module ended."""
        return self._of(self.survey.ends, module, 0)

    def key(self, step: int, item: Finding | Judgement) -> _Key:
        """Return what orders everything that was said: parameters first, then execution order."""
        if item.check is Check.PARAMETER:
            return (0, self.places.get(item.module, len(self.places)), step, item.order)
        return (1, self.moment(item), step, item.order)

    @staticmethod
    def _of(moments: Mapping[tuple[str, int], int], module: str, call: int) -> float:
        return moments.get((module, call), moments.get((module, 0), 0))


def merged(
    outcomes: Sequence[Outcome], timeline: Timeline, *, notes: Sequence[str], why: Sequence[str]
) -> tuple[Outcome, Claim | None]:
    """Put the outcomes of steps together.

    Args:
        outcomes: of the steps; the first has the run's metadata.
        timeline: orders them.
        notes: what a reader must know besides.
        why: further reasons why an absence of findings would prove nothing.

    Returns:
        The outcome, and what is verified of its first finding.
    """
    keyed = [(timeline.key(step, item), item) for step, item in _items(outcomes)]
    # A finding and its judgement have the same key, and get the same number.
    numbers = {key: n for n, key in enumerate(sorted({key for key, _ in keyed}))}
    ranks = {id(item): numbers[key] for key, item in keyed}
    findings = [replace(f, order=ranks[id(f)]) for o in outcomes for f in o.findings]
    judgements = [replace(j, order=ranks[id(j)]) for o in outcomes for j in o.judgements]
    findings.sort(key=lambda finding: finding.order)
    judgements.sort(key=lambda judgement: judgement.order)
    outcome = Outcome(
        verdict=Verdict.ALIGNED,
        findings=tuple(findings),
        judgements=tuple(judgements),
        unchecked=_united(o.unchecked for o in outcomes),
        unobservable=_united(o.unobservable for o in outcomes),
        distribution=outcomes[0].distribution,
        run=outcomes[0].run,
        why_inconclusive=_united([*(o.why_inconclusive for o in outcomes), why]),
        notes=_united([*(o.notes for o in outcomes), notes]),
    )
    divergent = (finding for finding in findings if finding.verdict is Verdict.DIVERGENT)
    first = next(divergent, None) or next(iter(findings), None)
    # Until here a call was the reference's, which computes all steps of a run at once.
    outcome = replace(outcome, findings=tuple(told_by_step(finding) for finding in findings))
    if first is None:
        return roll_up(outcome), None
    before = _before(first, judgements, timeline)
    return roll_up(outcome), Claim(finding=told_by_step(first), before=before)


def first_divergent(outcomes: Sequence[Outcome], timeline: Timeline) -> Finding | None:
    """Return the divergent finding that comes first in execution order, or None."""
    found = [f for o in outcomes for f in o.findings if f.verdict is Verdict.DIVERGENT]
    return min(found, key=lambda finding: timeline.moment(finding), default=None)


def without(outcome: Outcome, module: str) -> Outcome:
    """Return an outcome without what it says of a module's own code and parameters."""
    return replace(
        outcome,
        findings=tuple(f for f in outcome.findings if f.module != module),
        judgements=tuple(j for j in outcome.judgements if j.module != module),
    )


def _before(first: Finding, judgements: Sequence[Judgement], timeline: Timeline) -> Judgement | None:
    """Return the last edge before a finding; parameters are no edges."""
    edges = [j for j in judgements if j.check is not Check.PARAMETER and j.verdict is not Verdict.UNCHECKED]
    if first.check is Check.PARAMETER:
        edges = [j for j in edges if timeline.moment(j) <= timeline.moment(first)]
    else:
        edges = [j for j in edges if j.order < first.order]
    return edges[-1] if edges else None


def _items(outcomes: Sequence[Outcome]) -> Iterator[tuple[int, Finding | Judgement]]:
    """Yield everything that was said, with the number of the step that said it."""
    for step, outcome in enumerate(outcomes):
        for finding in outcome.findings:
            yield step, finding
        for judgement in outcome.judgements:
            yield step, judgement


def _united(groups: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(item for group in groups for item in group))
