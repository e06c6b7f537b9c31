"""Looks at parts of the candidate: each captures what it needs, judges it, and is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from validator.bisecting.boundaries import Boundary, boundaries_of, usual_dtype
from validator.bisecting.candidates import Candidates, Captured
from validator.bisecting.path import Step
from validator.bisecting.referee import Referee
from validator.bisecting.scope import Scope
from validator.bisecting.search import hinted
from validator.bisecting.sides import Pairing, Sides
from validator.bisecting.storing import State, outcome_from_json, outcome_to_json
from validator.checks.findings import Finding, Outcome, Verdict
from validator.progress import Progress

__all__ = ["Look", "Looker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look found.

    Attributes:
        step: of the path that the search takes.
        outcome: what the checks say.
        boundaries: where what blocks returned lies; of the first look alone, as the next two.
        names: of the candidate's modules, by the reference's.
        itemsize: bytes of most of the candidate's elements.
    """

    step: Step
    outcome: Outcome
    boundaries: tuple[Boundary, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    itemsize: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "step": self.step.to_json(),
            "outcome": outcome_to_json(self.outcome),
            "boundaries": [one.to_json() for one in self.boundaries],
            "names": dict(self.names),
            "itemsize": self.itemsize,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Look":
        """Read what `to_json` gave."""
        return cls(
            step=Step.from_json(fields["step"]),
            outcome=outcome_from_json(fields["outcome"]),
            boundaries=tuple(Boundary.from_json(item) for item in fields["boundaries"]),
            names=fields["names"],
            itemsize=fields["itemsize"],
        )


@dataclass(kw_only=True)
class Looker:
    """Looks, or remembers.

    Attributes:
        candidates: gives what was captured of the candidate.
        pairing: captures the same of the reference.
        referee: judges.
        scope: what the search is about.
        state: keeps what is known.
        progress: told the stage, and how much of how much is done.
        remembered: steps that were not taken again, since their results were kept.
    """

    candidates: Candidates
    pairing: Pairing
    referee: Referee
    scope: Scope
    state: State
    progress: Progress
    remembered: tuple[Step, ...] = field(init=False, default=())
    _first: Look | None = field(init=False, default=None)

    def boundaries(self) -> Look:
        """Look at all that lies in no block, and at what blocks are given and return."""
        if self._first is None:
            self._first = self._kept("boundaries", self._boundaries)
        return self._first

    def functions(self, blocks: Sequence[str]) -> Look:
        """Judge blocks as one function each on the candidate's own input, with what was captured already.

        That sees more than the noise of the whole run, which grows from block to block, but less than the
        edges inside.
        """
        ends = " to ".join(dict.fromkeys((blocks[0], blocks[-1])))
        return self._kept(f"functions {ends}", lambda: self._functions(tuple(blocks)))

    def inside(self, blocks: Sequence[str], *, is_sweep: bool) -> Look:
        """Look at every edge inside of some blocks."""
        return self._kept(f"inside {' '.join(blocks)}", lambda: self._inside(blocks, is_sweep=is_sweep))

    def operators(self, guilty: Finding) -> Look:
        """Look at a module that diverges again, with its operators."""
        return self._kept(f"operators {guilty.module}", lambda: self._operators(guilty))

    def shows_operators(self, guilty: Finding) -> bool:
        """Say whether another look at the module would show its operators."""
        return self.candidates.has_operators(guilty.candidate_module)

    def candidate_name(self, fqn: str) -> str:
        """Return what the candidate calls a module; where that is not known, what it calls the one around."""
        names = self.boundaries().names
        while fqn and fqn not in names:
            fqn = fqn.rpartition(".")[0]
        return names.get(fqn, "")

    def _kept(self, key: str, look: Callable[[], Look]) -> Look:
        found = self.state.get(key, Look.from_json)
        if found is not None:
            self.remembered += () if found.step in self.remembered else (found.step,)
            return found
        kept = look().to_json()
        self.state.put(key, kept)
        return Look.from_json(kept)

    def _boundaries(self) -> Look:
        captured = self.candidates.boundaries()
        survey, scope = self.scope.survey, self.scope
        dtype = usual_dtype(captured)
        noise = dtype if scope.has_many_blocks else None
        self.progress("noise", 0, 1)
        sides = self.pairing.sides(captured, (*survey.frame, *survey.blocks), noise=noise)
        self.progress("noise", 1, 1)
        boundaries = boundaries_of(ref=sides.ref, trace=sides.trace, survey=survey, blocks=scope.blocks)
        outcome = self.referee.judge(sides, scope.frame, is_whole=not scope.within)
        if sides.why_no_noise:
            note = f"the blocks' boundaries say nothing: {sides.why_no_noise}"
            outcome = replace(outcome, notes=(*outcome.notes, note))
        hint = hinted([(one.block, one.side) for one in boundaries])
        said = "within the noise" if boundaries else "aligned"
        if outcome.findings:
            said = _said(outcome)
        elif hint is not None:
            said = f"beyond the noise from {hint} on"
        return Look(
            step=_step("boundaries", scope.blocks, captured, said),
            outcome=outcome,
            boundaries=boundaries,
            names=self.pairing.names(sides, survey),
            itemsize=torch.float32.itemsize if dtype is None else getattr(torch, dtype).itemsize,
        )

    def _functions(self, blocks: tuple[str, ...]) -> Look:
        survey = self.scope.survey
        sides = self.pairing.sides(self.candidates.boundaries(), (*survey.frame, *survey.blocks))
        outcome = self.referee.judge(sides, blocks)
        outcome = replace(
            outcome, findings=tuple(f for f in outcome.findings if f.module in blocks), judgements=()
        )
        step = Step(
            name="functions", modules=blocks, captured=0, runs=0, size_bytes=0, verdict=_said(outcome)
        )
        return Look(step=step, outcome=outcome)

    def _inside(self, blocks: Sequence[str], *, is_sweep: bool) -> Look:
        wanted = self.scope.inside(blocks)
        tops = tuple(self.scope.top(block) for block in blocks)
        captured = self._captured("inside", [self.candidate_name(top) for top in tops])
        outcome = self.referee.judge(self.pairing.sides(captured, wanted), wanted)
        step = _step("sweep" if is_sweep else "inside", tops, captured, _said(outcome))
        return Look(step=step, outcome=outcome)

    def reproduce(self, guilty: Finding, folder: Path) -> tuple[Step, str]:
        """Write a reproducer of a finding; return what that took, and what became of it in words."""
        sides = self._alone(guilty)
        made = self.referee.reproduced(sides, guilty, folder)
        return _step("reproducer", (guilty.module,), sides.captured, _said_of(guilty)), made

    def _operators(self, guilty: Finding) -> Look:
        module = guilty.module
        sides = self._alone(guilty)
        captured, outcome = sides.captured, self.referee.judge(sides, (module,))
        named = next((finding for finding in _worst_first(outcome) if finding.op is not None), None)
        said = _said(outcome) if named is None else f"{_verdict_of(named)}: {named.op}"
        step = _step("operators", (module,), captured, said)
        return Look(step=step, outcome=outcome)

    def _alone(self, guilty: Finding) -> Sides:
        """Return both sides of a module alone, with its operators where they can be had."""
        survey, module, own = self.scope.survey, guilty.module, guilty.candidate_module
        has_operators = self.shows_operators(guilty)
        if not has_operators:
            own = self.candidate_name(module)
        wanted = survey.inside((module,))
        holds_blocks = any(block != module and block in wanted for block in survey.blocks)
        if holds_blocks:
            outer = {*survey.frame, *survey.blocks}
            wanted = tuple(fqn for fqn in wanted if fqn in outer)
        captured = self._captured(
            "operators" if has_operators else "alone",
            (own,),
            with_operators=has_operators,
            with_blocks=not holds_blocks,
        )
        return self.pairing.sides(captured, wanted)

    def _captured(
        self, what: str, names: Sequence[str], *, with_operators: bool = False, with_blocks: bool = True
    ) -> Captured:
        """Return what was captured of some modules, in the candidate's names."""
        self.progress("candidate", 0, 1)
        captured = self.candidates.inside(
            names,
            f"{what}-{_file_name(names)}",
            with_operators=with_operators,
            with_blocks=with_blocks,
            around=self.pairing.around,
        )
        self.progress("candidate", 1, 1)
        return captured


def _step(name: str, modules: tuple[str, ...], captured: Captured, said: str) -> Step:
    return Step(
        name=name,
        modules=modules,
        captured=captured.modules,
        runs=captured.runs,
        size_bytes=captured.size_bytes,
        verdict=said,
    )


def _said(outcome: Outcome) -> str:
    first = next(iter(_worst_first(outcome)), None)
    if first is None:
        return "inconclusive" if outcome.why_inconclusive else "aligned"
    return _said_of(first)


def _said_of(finding: Finding) -> str:
    return f"{_verdict_of(finding)}: {finding.module or 'the model itself'}"


def _verdict_of(finding: Finding) -> str:
    return finding.verdict.replace("_", " ")


def _worst_first(outcome: Outcome) -> list[Finding]:
    """Return the findings in order, those that diverge before those that are less precise alone."""
    return sorted(outcome.findings, key=lambda finding: finding.verdict is not Verdict.DIVERGENT)


def _file_name(modules: Sequence[str]) -> str:
    ends = dict.fromkeys((modules[0] or "model", modules[-1] or "model"))
    return "-".join("".join(c if c.isalnum() or c in "._" else "_" for c in end)[-100:] for end in ends)
