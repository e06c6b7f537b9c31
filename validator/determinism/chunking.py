"""D1: a prompt fed in chunks gives the bits of one that is fed at once, or rounding explains why not."""

from collections.abc import Sequence

from validator.align.step_joins import join_steps
from validator.align.steps import NotOnePrefillError, find_generations
from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture
from validator.determinism.batching import judged_difference
from validator.determinism.explained import Oracle
from validator.determinism.inside import listed, operators_of, reductions_of
from validator.determinism.records import Answer
from validator.determinism.rows import compare_rows
from validator.determinism.runs import RunSet

__all__ = ["chunking"]


def chunking(runs: RunSet, oracle: Oracle, *, tokens: int) -> Answer:
    """Say whether the bits of a prompt depend on the chunks that it is fed in, and whether they may.

    Args:
        runs: of `variants.chunk_variants`.
        oracle: checks runs whose bits differ.
        tokens: s of the target's inputs.

    Raises:
        ValidatorError: a run can't be checked.
    """
    why = runs.failures.get("whole") or runs.failures.get("chunked")
    if why:
        return Answer(skipped=why)
    whole, chunked = runs.capture("whole"), runs.capture("chunked")
    try:
        joined = _joined(chunked, whole)
    except NotOnePrefillError as error:
        return Answer(skipped=f"the chunks can't be put end to end: {error}")
    found = compare_rows(whole.all_ranks(), joined, sizes=(1, 1), tokens=tokens, shared=((0, 0),))
    sizes = ", ".join(map(str, runs.variants["chunked"].chunks or ()))
    what = f"computes a prompt of {tokens} tokens otherwise in chunks of {sizes}"
    if found.first is None:
        return Answer(
            compared=found.compared,
            figures={"bits in chunks": "the same"},
            blind=_blind(runs, tokens, found.compared),
        )
    looked = operators_of(runs, found.first.culprit, runs.variants["whole"])[0].all_ranks()
    behind = listed(reductions_of(looked, found.first.culprit))
    problems, notes = judged_difference(oracle, (runs, "whole"), (runs, "chunked"), found.first, behind, what)
    return Answer(
        problems=tuple(problems),
        compared=found.compared,
        figures={
            "bits in chunks": "others, beyond rounding" if problems else "others, explained by rounding"
        },
        notes=tuple(notes),
        blind=None if problems else _blind(runs, tokens, found.compared),
    )


def _joined(chunked: Capture, whole: Capture) -> Sequence[RankCapture]:
    """Return what each rank computed of the chunks, put end to end as one call."""
    ranks = chunked.all_ranks()
    joined: list[RankCapture] = []
    for rank in ranks:
        generations = find_generations([rank])
        joined += join_steps([rank], generations=generations, ref=whole.rank(rank.rank))
    return joined


def _blind(runs: RunSet, tokens: int, compared: int) -> str | None:
    if not compared:
        return "no tensor of the candidate has a part for each token of the prompt"
    if "control-later" not in runs.variants:
        return runs.failures.get("control-later", "no control was run")
    whole, site = runs.capture("whole"), runs.site()
    healthy, control = (_joined(runs.capture(name), whole) for name in ("chunked", "control-later"))
    all_places = compare_rows(healthy, control, sizes=(1, 1), tokens=tokens, shared=((0, 0),)).places
    at_site = frozenset(place for place in all_places if place[1] == site)
    found = compare_rows(healthy, control, sizes=(1, 1), tokens=tokens, shared=((0, 0),), places=at_site)
    if found.first is None or found.first.side != "outputs":
        return f"later chunks that are off were planted at {site}, and were not seen there first"
    return None
