"""Facts that every rendering of an outcome needs: text, JSON and frame say the same thing."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from validator.checks.findings import Arm, Check, EdgeVerdict, Finding, Judgement, Outcome, Verdict

__all__ = [
    "checked",
    "edge_key",
    "edges",
    "error_over_band",
    "first_divergence",
    "first_judgement",
    "is_of",
    "layer_of",
    "layers",
    "mesh_axes",
    "recipes",
    "side",
    "storage_format",
    "subject",
    "world_size",
]

_LAYER = re.compile(r"^(?:.*?\.)?\d+(?=\.|$)")


def first_divergence(outcome: Outcome) -> Finding | None:
    """Return the first finding, in execution order, that is divergent; None if there is none."""
    return next((f for f in outcome.findings if f.verdict is Verdict.DIVERGENT), None)


def subject(outcome: Outcome) -> Finding | None:
    """Return the finding that a report opens with: the first divergence, else the first finding, or None."""
    return first_divergence(outcome) or next(iter(outcome.findings), None)


def first_judgement(outcome: Outcome) -> int | None:
    """Return the position, among the judgements, of the edge that the first divergence is of, or None."""
    first = first_divergence(outcome)
    if first is None:
        return None
    return next((n for n, j in enumerate(outcome.judgements) if is_of(j, first)), None)


def is_of(judgement: Judgement, finding: Finding) -> bool:
    """Say whether a judgement is that of the edge that a finding is about."""
    if judgement.verdict is Verdict.ALIGNED or judgement.verdict is Verdict.UNCHECKED:
        return False
    # Each rank's term of a sum is an edge by itself.
    return edge_key(judgement) == edge_key(finding) and (
        finding.check is not Check.PARTIAL or judgement.rank == finding.rank
    )


def edge_key(edge: EdgeVerdict) -> tuple[object, ...]:
    """Tell an edge from all others by its place in the order of execution.

    Its call does not: a finding of decode steps tells the candidate's, a judgement the reference's.
    """
    return edge.module, edge.check, edge.into, edge.path, edge.order


def error_over_band(*, verdict: Verdict, arm: Arm | None, measured: float | None) -> float | None:
    """Return the largest error of an edge over what the band allows.

    Args:
        verdict: of the edge.
        arm: the rule that decided, where one did.
        measured: as `Evidence.max_over_band` has it.

    Returns:
        inf where a value that should be exact, or a class, differs, however small the other errors; 0 where
        nothing that should be exact differs; None where nothing was judged.
    """
    if arm in (Arm.EXACT, Arm.CLASS):
        return math.inf
    if measured is not None:
        return measured
    return {Verdict.ALIGNED: 0.0, Verdict.UNCHECKED: None}.get(verdict, math.inf)


def checked(outcome: Outcome) -> dict[Check, int]:
    """Count the judged edges by check; every check has a key, edges that were not judged count nowhere."""
    counts = Counter(judgement.check for judgement in _judged(outcome))
    return {check: counts[check] for check in Check}


def edges(outcome: Outcome) -> list[Judgement]:
    """Return what was said of the edges that were judged, in execution order; parameters are no edges."""
    return [judgement for judgement in _judged(outcome) if judgement.check is not Check.PARAMETER]


def layers(outcome: Outcome) -> int:
    """Count the layers with a judged edge: modules whose name ends in the first number of a dotted path."""
    return len({layer_of(judgement.module) for judgement in _judged(outcome)} - {None})


def layer_of(module: str) -> str | None:
    """Return the layer that a module is or lies in: its dotted path up to the first number, or None."""
    match = _LAYER.match(module)
    return match.group() if match else None


def recipes(outcome: Outcome) -> tuple[str, ...]:
    """Return the recipes that explain the aligned edges, the most frequent first."""
    counts = Counter(j.recipe for j in outcome.judgements if j.verdict is Verdict.ALIGNED and j.recipe)
    return tuple(recipe for recipe, _ in counts.most_common())


def storage_format(outcome: Outcome) -> str:
    """Return the most frequent floating dtype of the judged edges, or `""` if there is none."""
    counts = Counter(j.dtype for j in _judged(outcome) if "float" in j.dtype)
    return counts.most_common(1)[0][0] if counts else ""


def side(outcome: Outcome, name: str) -> Mapping[str, Any]:
    """Return the run metadata of one side, `"reference"` or `"candidate"`; empty if it has none."""
    metadata = outcome.run.get(name)
    return metadata if isinstance(metadata, Mapping) else {}


def mesh_axes(outcome: Outcome) -> dict[str, int]:
    """Return the sizes of the axes of the candidate's device meshes, by name."""
    return {
        axis: size
        for mesh in _parallelism(outcome).get("meshes", ())
        for axis, size in zip(mesh["axes"], mesh["shape"], strict=True)
    }


def world_size(outcome: Outcome) -> int:
    """Return the candidate's number of ranks; 1 if the run does not say."""
    return int(_parallelism(outcome).get("world_size") or 1)


def _parallelism(outcome: Outcome) -> Mapping[str, Any]:
    metadata = side(outcome, "candidate").get("parallelism")
    return metadata if isinstance(metadata, Mapping) else {}


def _judged(outcome: Outcome) -> list[Judgement]:
    return [j for j in outcome.judgements if j.verdict is not Verdict.UNCHECKED]
