"""The search itself: boundaries first, then the inside of the block that they point at, then what is left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from validator.bisecting.looks import Look, Looker
from validator.bisecting.merging import Timeline, first_divergent, merged, without
from validator.bisecting.path import Bisection, Cost, Step
from validator.bisecting.scope import Scope
from validator.bisecting.search import Reason, Visit, hinted, is_monotone, search, visits
from validator.bisecting.survey import is_below
from validator.checks.findings import Check, Finding, Outcome, Verdict

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
    """

    looker: Looker
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    _looked: set[str] = field(default_factory=set)

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
        self._look_at_operators()
        return self._result()

    @property
    def _scope(self) -> Scope:
        return self.looker.scope

    @property
    def _timeline(self) -> Timeline:
        return Timeline(survey=self._scope.survey)

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
        scope, looker = self._scope, self.looker
        held = [b for b in scope.blocks if looker.candidates.holds(looker.candidate_name(scope.top(b)))]
        itemsize = looker.boundaries().itemsize
        sizes = {block: scope.survey.size_bytes(scope.inside((block,)), itemsize) for block in held}
        limit = max(sum(sizes.values()) // SWEEP_SHARE, 1)
        return visits(held, self._hints(hint), size_bytes=sizes, limit_bytes=limit)

    def _hints(self, hint: str | None) -> Iterator[str]:
        """Yield blocks to look into first: what the noise says, then each block alone as one function."""
        if hint is not None:
            yield hint
        if self._scope.has_many_blocks:
            yield from dict.fromkeys(f.module for f in self._functions().findings)

    def _functions(self) -> Outcome:
        look = self.looker.functions()
        if look.step not in self.steps:
            self.steps.append(look.step)
        return look.outcome

    def _look_inside(self, visit: Visit) -> bool:
        """Look into some blocks, and say whether an edge there diverges."""
        is_sweep = visit.reason is Reason.SWEEP and len(self._scope.blocks) > 1
        self._take(self.looker.inside(visit.blocks, is_sweep=is_sweep))
        self._looked.update(visit.blocks)
        return any(f.verdict is Verdict.DIVERGENT for f in self.outcomes[-1].findings)

    def _look_at_operators(self) -> None:
        """Look at the guilty module again with its operators: what that says takes the place of the rest."""
        first = first_divergent(self.outcomes, self._timeline)
        if first is None or first.check not in (Check.FUNCTION, Check.WIRING):
            return
        survey, module = self._scope.survey, first.module
        holds_blocks = any(block != module and is_below(block, module) for block in survey.blocks)
        is_small = module in survey.modules and not holds_blocks
        if not is_small or not self.looker.candidates.has_operators(first.candidate_module):
            return
        if self.looker.pairing.is_stepped:
            self.notes.append(
                f"the operators of {module} were not looked at: the run is one of several steps"
            )
            return
        look = self.looker.operators(first)
        self.steps.append(look.step)
        if not look.outcome.findings:
            self.notes.append(f"{module} is off no more when its operators are looked at")
            return
        self.outcomes = [without(earlier, module) for earlier in self.outcomes]
        self.outcomes.append(replace(look.outcome, unobservable=(), notes=()))

    def _make_do(self) -> None:
        """Say what can be said where a stored capture holds nothing of some blocks' insides."""
        left = self._left()
        why = f"the capture holds nothing of the inside of {left[0]}" + (
            f" and of {len(left) - 1} other blocks" if len(left) > 1 else ""
        )
        found = self._functions() if self._scope.has_many_blocks else None
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
                f"{len(left)} of {len(scope.blocks)} blocks were not looked into; `validator check` does all"
            )
        self.notes += self._not_called()
        outcome, claim = merged(self.outcomes, self._timeline, notes=self.notes, why=self.why)
        full = scope.survey.size_bytes(scope.survey.modules, self.looker.boundaries().itemsize)
        return Bisection(outcome=outcome, path=tuple(self.steps), cost=Cost.of(self.steps, full), claim=claim)

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
