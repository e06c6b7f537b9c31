"""How a step of the search is judged: every edge of some modules' code, on the candidate's own inputs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from validator.bisecting.sides import Sides
from validator.bisecting.survey import Survey
from validator.capturing.provenance import (
    manifest_metadata,
    manifest_notes,
    proof_reasons,
    software_of,
)
from validator.checks.endtoend import end_to_end
from validator.checks.engine import policy_of, roll_up, run_checks
from validator.checks.findings import Finding, Outcome
from validator.checks.heads import head_sizes
from validator.checks.observing import Observer
from validator.checks.padding import real_positions
from validator.numerics.recipes import Recipe
from validator.reproducing.writing import write_first

__all__ = ["Referee"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Referee:
    """Judges what was captured of the candidate against the reference.

    Attributes:
        reference: the trusted model.
        survey: of its run.
        recipe: what is declared of the candidate's arithmetic, or None.
        progress: told how many calls of a step are judged, of how many.
        profiles: whether to keep what each edge looks like.
    """

    reference: nn.Module
    survey: Survey
    recipe: Recipe | None
    progress: Callable[[int, int], None]
    profiles: bool = False

    def reproduced(self, sides: Sides, finding: Finding, folder: Path) -> str:
        """Write a reproducer of a finding, and say in words what became of it."""
        return write_first(
            folder,
            [finding],
            reference=self.reference,
            trace=sides.trace,
            run=sides.run,
            policy=policy_of(self.recipe),
            elements=self.survey.elements,
            real=real_positions(sides.ref.rank(0)),
            versions=software_of(sides.captured.manifest),
        )

    def judge(self, sides: Sides, scope: Collection[str], *, is_whole: bool = False) -> Outcome:
        """Judge every edge of some modules' code.

        Args:
            sides: what was captured.
            scope: fqns of the modules.
            is_whole: whether the output distribution is to be compared too.
        """
        ours = sides.ref.rank(0)
        real = real_positions(ours)
        outcome = run_checks(
            reference=self.reference,
            trace=sides.trace,
            run=sides.run,
            policy=policy_of(self.recipe),
            real=real,
            scope=frozenset(scope),
            elements=self.survey.elements,
            regions=sides.captured.manifest.compiled,
            observer=Observer(heads=head_sizes(self.reference)) if self.profiles else None,
            progress=self.progress,
        )
        # A layer that this step left out was not left out by the run.
        lists = {block.rpartition(".")[0] for block in self.survey.blocks}
        manifest = sides.captured.manifest
        outcome = replace(
            outcome,
            unobservable=tuple(x for x in outcome.unobservable if x.module not in lists),
            distribution=end_to_end(ref=ours, trace=sides.trace, real=real) if is_whole else None,
            notes=(*manifest_notes(manifest), *outcome.notes),
            run={
                "candidate": manifest_metadata(manifest),
                "reference": manifest_metadata(sides.ref.manifest),
            },
        )
        return roll_up(outcome, reasons=proof_reasons(manifest))
