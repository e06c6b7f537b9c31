"""Reads of memory that nothing was written to: once it is filled, a run must give the same bits."""

from validator.capturing.reader import Capture
from validator.capturing.records import Operator, Origin, RankCapture, TensorRef
from validator.determinism.events import count_tensors, first_other_result
from validator.determinism.inside import operators_of
from validator.determinism.records import Answer, Difference, Problem
from validator.determinism.reductions import bare_name
from validator.determinism.runs import RunSet
from validator.determinism.uninitialised import EMPTY_OPERATORS

__all__ = ["uninitialised_memory"]


def uninitialised_memory(runs: RunSet) -> Answer:
    """Say whether anything reads memory before it is written, which module first, and by which operator.

    Args:
        runs: of `variants.repeat_variants` and `memory_variants`.

    Raises:
        ValidatorError: a further run, that looks inside of the guilty module, fails.
    """
    failed = next((name for name in ("filled", "cleared") if name in runs.failures), None)
    if failed is not None:
        return _of_failure(runs, failed)
    first, cleared = runs.capture("first"), runs.capture("cleared")
    compared = sum(count_tensors(first.rank(rank)) for rank in first.ranks)
    found = _reads(cleared, runs.capture("filled"))
    if found is None:
        return Answer(compared=compared, blind=_blind(runs, cleared))
    looks = operators_of(runs, found.module, runs.variants["cleared"], runs.variants["filled"])
    behind = _reader(looks[0], looks[1], found)
    repeats = [name for name in runs.variants if name.startswith("again")]
    # NaN that an operator makes of filled memory alone is proof by itself, also where bits always change.
    if not behind and any(_reads(first, runs.capture(name)) is not None for name in repeats):
        return Answer(
            compared=compared,
            blind="the candidate gives other bits in every run, so these don't tell what memory held",
        )
    return Answer(problems=(_problem(found, behind),), compared=compared)


def _of_failure(runs: RunSet, failed: str) -> Answer:
    """Say why the candidate fails with its memory filled: it reads some, unless it fails without as well."""
    again = [variant.name for variant in runs.job.variants if variant.is_rebuilt and not variant.is_filled]
    if again and runs.failures.keys() >= set(again):
        return Answer(skipped=f"the candidate can't be built again here: {runs.failures[again[0]]}")
    text = (
        "the candidate fails once memory that nothing was written to is filled, so it reads some of it: "
        f"{runs.failures[failed]}"
    )
    return Answer(problems=(Problem(text=text, cause="uninitialised memory"),))


def _problem(found: Difference, behind: str) -> Problem:
    by = f" by {behind}" if behind else ""
    return Problem(
        text=(
            f"{found.module or 'the model'} reads memory that nothing was written to{by}: {found} is another "
            "once such memory is filled with NaN"
        ),
        module=found.module,
        rank=found.rank,
        cause=behind or "uninitialised memory",
    )


def _blind(runs: RunSet, cleared: Capture) -> str | None:
    if "control-read" not in runs.variants:
        return runs.failures.get("control-read", "no control was run")
    found = _reads(cleared, runs.capture("control-read"))
    if found is None or found.module != runs.site():
        seen = "nothing" if found is None else found.module
        return f"a read of fresh memory was planted at {runs.site()}, and what was seen is {seen}"
    return None


def _reads(one: Capture, other: Capture) -> Difference | None:
    """Return the first result that is another, if what the run returns is.

    What a call returns and nobody reads may be memory that is still to be written, and so may what pads a
    parameter.
    """
    ours, theirs = one.all_ranks(), other.all_ranks()
    if list(map(_returned, ours)) == list(map(_returned, theirs)):
        return None
    return first_other_result(ours, theirs)


def _returned(capture: RankCapture) -> list[dict[str, str]]:
    """Return the checksums of what the outermost calls of a rank return."""
    return [
        {path: value.meta.checksum for path, value in call.outputs.items() if isinstance(value, TensorRef)}
        for call in capture.calls
        if call.parent is None
    ]


def _reader(cleared: Capture, filled: Capture, found: Difference) -> str:
    """Return the first operator of a call that makes NaN where memory is filled with NaN, and none of zeros.

    NaN that it makes both times is the model's own.
    """
    sides = [_operators(capture, found) for capture in (cleared, filled)]
    fresh: dict[int, str] = {}
    for number, (ours, theirs) in enumerate(zip(*sides, strict=False)):
        if ours.name != theirs.name:
            return ""
        makers = [fresh[origin.operator] for origin in _origins(theirs) if origin.operator in fresh]
        if _count_nan(theirs) > _count_nan(ours):
            return f"{theirs.name} of what {makers[0]} made" if makers else theirs.name
        if bare_name(theirs.name) in EMPTY_OPERATORS:
            fresh[number] = theirs.name
        elif makers and all(made.ref is None for made in theirs.results):
            fresh[number] = makers[0]  # a view of it
    return ""


def _operators(capture: Capture, found: Difference) -> tuple[Operator, ...]:
    calls = next((rank.calls for rank in capture.all_ranks() if rank.rank == found.rank), ())
    here = (call for call in calls if (call.module, call.n) == (found.module, found.call))
    return next((call.operators for call in here), ())


def _count_nan(operator: Operator) -> int:
    refs = (made.ref for made in operator.results)
    return sum(ref.meta.statistics.nan for ref in refs if ref is not None and ref.meta.statistics is not None)


def _origins(operator: Operator) -> list[Origin]:
    values = list(operator.arguments.values())
    nested = [x for value in values if isinstance(value, list) for x in value]
    return [value for value in (*values, *nested) if isinstance(value, Origin)]
