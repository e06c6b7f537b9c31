"""Judge a candidate's capture against the reference: from two captures and a model to a result."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from validator.align.builder import build_trace
from validator.capturing.manifest import Manifest, ProofStatus
from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture
from validator.checks.endtoend import end_to_end
from validator.checks.engine import policy_of, real_positions, roll_up, run_checks
from validator.errors import CaptureError, MismatchError, UsageError
from validator.numerics.recipes import RECIPES, Recipe
from validator.report.result import Result

__all__ = ["Progress", "judged", "recipe_named"]

Progress = Callable[[str, int, int], None]
"""Told the stage, and how much of how much is done."""


def judged(
    *,
    reference: nn.Module,
    ref: Capture,
    cand: Capture,
    run: Callable[[nn.Module], Any],
    recipe: Recipe | None,
    names: Mapping[str, str],
    layout: Mapping[str, str],
    mesh: Mapping[str, int] | None,
    about: Mapping[str, Any],
    progress: Progress,
) -> Result:
    """Judge every edge of the candidate's run, and say how the two runs came about.

    Args:
        reference: the trusted model, in eval mode.
        ref: its capture on the same inputs.
        cand: the candidate's.
        run: feeds a model, as both sides were fed.
        recipe: what the device may round, or None for what is allowed where nothing is declared.
        names: the target's.
        layout: the target's.
        mesh: the target's.
        about: what the result says of each side besides the capture's metadata.
        progress: told how much is judged.

    Raises:
        ValidatorError: the two sides can't be compared.
    """
    planted = () if cand.manifest.planted is None else (cand.manifest.planted,)
    ours = ref.rank(0)
    real = real_positions(ours)
    trace = build_trace(cand=_ranks(cand), ref=ours, names=names, layout=layout, mesh=mesh)
    if not trace.calls:
        raise MismatchError(
            f"{cand.path} and the reference share modules, but no call of one lines up with a call of the "
            "other; "
            "were both run on the same inputs, in the same way?"
        )
    outcome = run_checks(
        reference=reference,
        trace=trace,
        run=run,
        policy=policy_of(recipe),
        real=real,
        progress=lambda done, total: progress("judging", done, total),
    )
    outcome = replace(
        outcome,
        distribution=end_to_end(ref=ours, trace=trace, real=real),
        notes=(*planted, *outcome.notes),
        run={
            **about,
            **{
                side: {**about.get(side, {}), **_metadata(captured.manifest)}
                for side, captured in (("reference", ref), ("candidate", cand))
            },
        },
    )
    return Result(roll_up(outcome, reasons=_proof_reasons(cand.manifest)))


def recipe_named(name: str | None) -> Recipe | None:
    """Return the recipe that `--recipe` names, or None for none.

    Raises:
        UsageError: there is no such recipe.
    """
    if name is None:
        return None
    if name not in RECIPES:
        raise UsageError(f"--recipe {name!r} is not known; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def _ranks(cand: Capture) -> list[RankCapture]:
    expected = cand.manifest.world_size
    missing = [rank for rank in range(expected) if rank not in cand.ranks]
    if missing:
        raise CaptureError(
            f"{cand.path} holds {len(cand.ranks)} of {expected} ranks; "
            f"rank {', '.join(map(str, missing))} is missing. "
            "Copy the other ranks' files into the folder, or capture all ranks."
        )
    return [cand.rank(rank) for rank in cand.ranks]


def _metadata(manifest: Manifest) -> Mapping[str, Any]:
    proof = manifest.proof
    return {
        **manifest.run,
        "recipe": manifest.recipe,
        "proof": {"status": proof.status, "reason": proof.reason},
    }


def _proof_reasons(manifest: Manifest) -> tuple[str, ...]:
    if manifest.proof.status is ProofStatus.CHANGED:
        return (f"looking changed the candidate's run: {manifest.proof.reason}",)
    return ()
