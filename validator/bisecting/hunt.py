"""The search itself: boundaries first, then the inside of the block that they point at, then what is left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from validator.bisecting.looks import Look, Looker
from validator.bisecting.merging import Timeline, first_divergent, merged, without
from validator.bisecting.path import Bisection, Claim, Cost, Step
from validator.bisecting.scope import Scope
from validator.bisecting.search import Reason, Visit, hinted, is_monotone, search, visits
from validator.capturing.outline import is_below
from validator.checks.findings import Check, Finding, Outcome, Verdict
from validator.reproducing.writing import NOTHING_FOUND

__all__ = ["Hunt"]

SWEEP_SHARE = 8
"""A step of a sweep captures no more than one part in so many of what all blocks hold."""


@dataclass(kw_only=True)
class Hunt:
    """One search.

    Attributes:
        looker: looks at parts of the candidate.
        steps: taken so far.
        outcomes: of these steps.
        notes: what a reader must know of the search.
        why: reasons why an absence of findings would prove nothing.
        repro: folder for a reproducer of the first finding, or None for none.
    """

    looker: Looker
    repro: Path | None = None
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    _looked: set[str] = field(default_factory=set)
    _judged: set[str] = field(default_factory=set)

    def run(self) -> Bisection:
        """Search, and return what was found.

        Raises:
            ValidatorError: the two sides can't be compared, or the candidate fails.
        """
        self.notes += self.looker.pairing.notes
        self._take(self.looker.boundaries())
        planned = self._visits(self._beyond_noise())
        frame = first_divergent(self.outcomes, self._timeline)
        if frame is None:
            if search(planned, self._look_inside) is None and len(self._looked) < len(self._scope.blocks):
                self._make_do()
        elif any(self._is_before(block, frame) for block in self._scope.blocks):
            # What is guilty already need not be the first: blocks that something points at may come before.
            pointed = takewhile(lambda visit: visit.reason is Reason.HINT, planned)
            search((v for v in pointed if self._is_before(v.blocks[-1], frame)), self._look_inside)
        self._look_before()
        self._look_at_operators()
        if self.repro is not None:
            self._reproduce(self.repro)
        return self._result()

    @property
    def _scope(self) -> Scope:
        return self.looker.scope

    @cached_property
    def _timeline(self) -> Timeline:
        return Timeline.of(self._scope.survey)

    def _take(self, look: Look) -> None:
        self.steps.append(look.step)
        self.outcomes.append(look.outcome)

    def _is_before(self, block: str, finding: Finding) -> bool:
        return self._timeline.end(block) < self._timeline.moment(finding)

    def _beyond_noise(self) -> str | None:
        """Return the first block whose output is beyond the noise that rounding carries there, or None."""
        sides = [(one.block, one.side) for one in self.looker.boundaries().boundaries]
        hint = hinted(sides)
        if hint is not None and not is_monotone(sides):
            self.notes.append(
                f"boundaries are beyond the noise from {hint} on, but not all: noise grows from block to "
                "block, and hides what is small"
            )
        return hint

    def _visits(self, hint: str | None) -> Iterator[Visit]:
        scope, held = self._scope, [block for block in self._scope.blocks if self._is_held(block)]
        itemsize = self.looker.boundaries().itemsize
        sizes = {block: scope.survey.size_bytes(scope.inside((block,)), itemsize) for block in held}
        limit = max(sum(sizes.values()) // SWEEP_SHARE, 1)
        return visits(held, self._hints(hint), size_bytes=sizes, limit_bytes=limit)

    def _is_held(self, block: str) -> bool:
        """Say whether the candidate's inside of a block can be had."""
        return self.looker.candidates.holds(self.looker.candidate_name(self._scope.top(block)))

    def _hints(self, hint: str | None) -> Iterator[str]:
        """Yield blocks to look into first: what the noise says, then each block alone as one function."""
        if hint is not None:
            yield hint
        if self._scope.has_many_blocks:
            yield from dict.fromkeys(f.module for f in self._functions(self._scope.blocks).findings)

    def _functions(self, blocks: Sequence[str]) -> Outcome:
        look = self.looker.functions(blocks)
        if look.step not in self.steps:
            self.steps.append(look.step)
        self._judged.update(blocks)
        return look.outcome

    def _look_inside(self, visit: Visit) -> bool:
        """Look into some blocks, and say whether an edge there diverges."""
        is_sweep = visit.reason is Reason.SWEEP and len(self._scope.blocks) > 1
        self._take(self.looker.inside(visit.blocks, is_sweep=is_sweep))
        self._looked.update(visit.blocks)
        return any(f.verdict is Verdict.DIVERGENT for f in self.outcomes[-1].findings)

    def _look_before(self) -> None:
        """Make sure that no block before the guilty one is off, which something pointed at too early.

        Those that were not looked into are judged as one function each, for which no more is captured; one
        that is off is looked into.
        """
        guilty = first_divergent(self.outcomes, self._timeline)
        if guilty is None:
            return
        before = [b for b in self._left() if self._is_before(b, guilty) and b not in self._judged]
        pointed = self._functions(before).findings if before else ()
        named = [b for b in dict.fromkeys(f.module for f in pointed) if self._is_held(b)]
        search((Visit(blocks=(block,), reason=Reason.HINT) for block in named), self._look_inside)

    def _look_at_operators(self) -> None:
        """Look at the guilty module again with its operators: what that says takes the place of the rest."""
        first = first_divergent(self.outcomes, self._timeline)
        if first is None or first.check not in (Check.FUNCTION, Check.WIRING):
            return
        module = first.module
        if not self.looker.shows_operators(first):
            return
        look = self.looker.operators(first)
        self.steps.append(look.step)
        if not look.outcome.findings:
            self.notes.append(f"{module} is off no more when its operators are looked at")
            return
        self.outcomes = [without(earlier, module) for earlier in self.outcomes]
        self.outcomes.append(replace(look.outcome, unobservable=(), notes=()))

    def _reproduce(self, folder: Path) -> None:
        """Write a reproducer of the first finding, and note what became of it."""
        findings = [finding for outcome in self.outcomes for finding in outcome.findings]
        first = first_divergent(self.outcomes, self._timeline)
        first = first or min(findings, key=self._timeline.moment, default=None)
        if first is None:
            self.notes.append(NOTHING_FOUND)
            return
        step, made = self.looker.reproduce(first, folder)
        is_had = any(taken.name == "operators" and taken.modules == step.modules for taken in self.steps)
        if step.runs and not is_had:
            self.steps.append(step)
        self.notes.append(made)

    def _make_do(self) -> None:
        """Say what can be said where a stored capture holds nothing of some blocks' insides."""
        left = self._left()
        why = f"the capture holds nothing of the inside of {left[0]}" + (
            f" and of {len(left) - 1} other blocks" if len(left) > 1 else ""
        )
        found = self._functions(self._scope.blocks) if self._scope.has_many_blocks else None
        beyond = (one.finding for one in self.looker.boundaries().boundaries)
        outside = next((finding for finding in beyond if finding is not None), None)
        if found is not None and found.findings:
            self.outcomes.append(replace(found, why_inconclusive=(), notes=()))
        elif outside is not None:
            self.outcomes.append(Outcome(verdict=outside.verdict, findings=(outside,), judgements=()))
        else:
            self.why.append(why)
            return
        self.notes.append(f"the search ends here: {why}")

    def _left(self) -> Sequence[str]:
        return [block for block in self._scope.blocks if block not in self._looked]

    def _result(self) -> Bisection:
        """Put the steps together as one outcome."""
        scope, left = self._scope, self._left()
        if scope.within:
            self.notes.append(f"only {scope.within} was looked at")
        if left and any(outcome.findings for outcome in self.outcomes):
            self.notes.append(
                f"not looked into: {len(left)} of {len(scope.blocks)} blocks; `validator check` does all"
            )
        self.notes += self._not_called()
        if self.looker.remembered:
            known = ", ".join(f"{step.name} of {step.extent}" for step in self.looker.remembered)
            self.notes.append(f"remembered from --keep, and not looked at again: {known}")
        if self.looker.state.trouble is not None:
            self.notes.append(self.looker.state.trouble)
        outcome, claim = merged(self.outcomes, self._timeline, notes=self.notes, why=self.why)
        claim = None if claim is None else self._with_blocks(claim)
        full = scope.survey.size_bytes(scope.survey.modules, self.looker.boundaries().itemsize)
        return Bisection(outcome=outcome, path=tuple(self.steps), cost=Cost.of(self.steps, full), claim=claim)

    def _with_blocks(self, claim: Claim) -> Claim:
        """Say how many blocks before a finding were looked into, and how many as one function alone."""
        before = {b for b in self._scope.blocks if self._is_before(b, claim.finding)}
        inside = before & self._looked
        return replace(claim, inside=len(inside), as_functions=len((before & self._judged) - inside))

    def _not_called(self) -> list[str]:
        """Say whose parameters no step compared: an expert's that no token reached, say."""
        called = self._scope.survey.modules
        names = [
            fqn
            for fqn, module in self.looker.pairing.reference.named_modules()
            if fqn not in called
            and is_below(fqn, self._scope.within)
            and next(module.parameters(recurse=False), None) is not None
        ]
        if not names:
            return []
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return [
            f"never called, so that their parameters were not compared, as `validator check` does: {shown}"
        ]
