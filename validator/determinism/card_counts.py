"""D2: another number of cards changes the bits of sums over ranks alone, and these as rounding explains."""

from collections.abc import Sequence

from validator.capturing.records import RankCapture, TensorRef
from validator.comparing.comparison import compare_captures
from validator.comparing.records import Pair
from validator.determinism.batching import judged_difference
from validator.determinism.explained import Oracle
from validator.determinism.inside import listed, operators_of, reductions_of
from validator.determinism.records import Answer, Difference
from validator.determinism.reductions import collectives_in
from validator.determinism.runs import RunSet

__all__ = ["card_counts"]


def card_counts(one: RunSet, many: RunSet, oracle: Oracle) -> Answer:
    """Say where the bits on several cards part from those on one, and whether they may.

    Args:
        one: of `variants.repeat_variants`, on one rank.
        many: the same on several.
        oracle: checks runs whose bits differ.

    Returns:
        What differs, or why this says nothing: where each rank does all of the work nothing is sharded, and
        the same bits on all are no merit.

    Raises:
        ValidatorError: the runs can't be compared or checked.
    """
    pairs = [
        pair
        for pair in compare_captures(ref=one.capture("first"), cand=many.capture("first")).pairs
        if pair.side != "parameter"
    ]
    cards = f"{many.world_size} cards"
    first = next((pair for pair in pairs if pair.differs), None)
    figures: dict[str, int | str] = {
        f"tensors of the same bits on {cards}": f"{sum(not pair.differs for pair in pairs)} of {len(pairs)}"
    }
    ranks = many.capture("first").all_ranks()
    unsharded = _unsharded(one.capture("first").rank(0), ranks)
    if first is None and unsharded is not None:
        return Answer(skipped=unsharded)
    if first is None:
        return Answer(compared=len(pairs), figures=figures, blind=_blind(many, oracle))
    difference = _difference(first)
    over_ranks = collectives_in(ranks, first.candidate_module, first.call)
    behind = " and ".join(over_ranks) or _inside(many, first)
    problems, notes = judged_difference(
        oracle,
        (one, "first"),
        (many, "first"),
        difference,
        behind,
        f"gives other bits on {cards} than on one",
    )
    if not problems and unsharded is not None:
        return Answer(skipped=unsharded, notes=tuple(notes))
    notes += [
        f"{name} has no sum over ranks and gives other bits on {cards} for the same input, as rounding "
        "explains: a kernel may add up in another order where each card has fewer columns"
        for name in _split_alone(pairs, ranks)[:1]
    ]
    return Answer(
        problems=tuple(problems),
        compared=len(pairs),
        figures=figures,
        notes=tuple(notes),
        blind=None if problems else _blind(many, oracle),
    )


def _unsharded(one: RankCapture, ranks: Sequence[RankCapture]) -> str | None:
    """Say that each rank does what a single one does, by itself; None where it doesn't."""
    whole = _shapes(one)
    if any(rank.collectives or _shapes(rank) != whole for rank in ranks):
        return None
    return (
        f"each of {len(ranks)} ranks runs the whole model by itself: there is no collective, and no "
        "parameter and no output is another part on each, so that nothing is sharded"
    )


def _shapes(capture: RankCapture) -> dict[tuple[str, int, str], tuple[int, ...]]:
    """Return the shapes of this rank's parameters and outputs."""
    shapes = {(name, -1, ""): parameter.ref.meta.shape for name, parameter in capture.parameters.items()}
    for call in capture.calls:
        outputs = ((path, value) for path, value in call.outputs.items() if isinstance(value, TensorRef))
        shapes |= {(call.module, call.n, path): value.meta.shape for path, value in outputs}
    return shapes


def _difference(pair: Pair) -> Difference:
    return Difference(
        module=pair.module,
        call=pair.call,
        rank=pair.rank,
        side=f"{pair.side}s",
        path=pair.path,
        mismatched=pair.metrics.mismatched,
        elements=pair.metrics.elements,
    )


def _inside(many: RunSet, first: Pair) -> str:
    """Return what reduces inside of the module, on each rank alone."""
    (look,) = operators_of(many, first.candidate_module, many.variants["first"])
    return listed(reductions_of(look.all_ranks(), first.candidate_module))


def _split_alone(pairs: Sequence[Pair], ranks: Sequence[RankCapture]) -> list[str]:
    """Return modules without a sum over ranks whose inputs are the same bits and whose outputs are not."""
    calls: dict[tuple[str, str, int], dict[str, list[bool]]] = {}
    for pair in pairs:
        sides = calls.setdefault((pair.module, pair.candidate_module, pair.call), {"input": [], "output": []})
        sides[pair.side].append(pair.differs)
    return [
        module
        for (module, candidate, call), sides in calls.items()
        if sides["input"] and not any(sides["input"]) and any(sides["output"])
        if not collectives_in(ranks, candidate, call)
    ]


def _blind(many: RunSet, oracle: Oracle) -> str | None:
    if "control-card" not in many.variants:
        return many.failures.get("control-card", "no control was run")
    seen = [finding.module for finding in oracle.findings(many, "control-card")]
    if many.site() not in seen:
        return f"ranks that are off were planted at {many.site()}, and were not seen there"
    return None
