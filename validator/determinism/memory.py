"""Reads of memory that nothing was written to: once it is filled, a run must give the same bits."""

from collections.abc import Sequence
from typing import Any

from validator.capturing.reader import Capture
from validator.capturing.records import Call, Operator, Origin, OriginKind, RankCapture, TensorRef
from validator.determinism.events import count_tensors, mismatches
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
    first = runs.capture("first")
    if "filled" in runs.failures:
        return Answer(
            problems=(
                Problem(
                    text=(
                        "the candidate fails once memory that nothing was written to is filled, so it reads "
                        f"some of it: {runs.failures['filled']}"
                    ),
                    cause="uninitialised memory",
                ),
            )
        )
    compared = sum(count_tensors(first.rank(rank)) for rank in first.ranks)
    found = _reads(first, runs.capture("filled"))
    if found is None:
        return Answer(compared=compared, blind=_blind(runs, first))
    (look,) = operators_of(runs, found.module, runs.variants["filled"])
    behind = _reader(look.all_ranks(), found)
    repeats = [name for name in runs.variants if name.startswith("again")]
    # NaN that an operator made of what filled memory holds is proof by itself, also where bits always change.
    if not behind and any(_reads(first, runs.capture(name)) is not None for name in repeats):
        return Answer(
            compared=compared,
            blind="the candidate gives other bits in every run, so these don't tell what memory held",
        )
    return Answer(problems=(_problem(found, behind),), compared=compared)


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


def _blind(runs: RunSet, first: Capture) -> str | None:
    if "control-read" not in runs.variants:
        return runs.failures.get("control-read", "no control was run")
    found = _reads(first, runs.capture("control-read"))
    if found is None or found.module != runs.site():
        seen = "nothing" if found is None else found.module
        return f"a read of fresh memory was planted at {runs.site()}, and what was seen is {seen}"
    return None


def _reads(plain: Capture, filled: Capture) -> Difference | None:
    """Return the first call whose output is another, on the ranks where what the run returns is another.

    What a call is only given, or returns and nobody reads, may be memory that is still to be written, and so
    may what pads a parameter.
    """
    for rank in plain.ranks:
        ours, theirs = plain.rank(rank), filled.rank(rank)
        if all(found is None for found in (_outputs(ours, theirs, call) for call in _outermost(ours))):
            continue
        for name, parameter in ours.parameters.items():
            other = theirs.parameters.get(name)
            if other is None or other.ref.meta.checksum != parameter.ref.meta.checksum:
                module, _, path = name.rpartition(".")
                return Difference(module=module, call=0, rank=rank, side="outputs", path=path)
        ended = sorted((call for call in ours.calls if call.end is not None), key=lambda call: call.end or 0)
        for call in ended:
            found = _outputs(ours, theirs, call)
            if found is not None:
                return found
    return None


def _outermost(capture: RankCapture) -> list[Call]:
    return [call for call in capture.calls if call.parent is None]


def _outputs(ours: RankCapture, theirs: RankCapture, call: Call) -> Difference | None:
    other = next((c for c in theirs.calls if (c.module, c.n) == (call.module, call.n)), None)
    for path, tensor in call.outputs.items():
        if not isinstance(tensor, TensorRef):
            continue
        filled = None if other is None else other.outputs.get(path)
        if not isinstance(filled, TensorRef) or filled.meta.checksum != tensor.meta.checksum:
            counts: dict[str, Any] = {}
            if isinstance(filled, TensorRef):
                a = tensor.read()
                counts = {"mismatched": mismatches(a, filled.read()), "elements": a.numel()}
            return Difference(
                module=call.module, call=call.n, rank=ours.rank, side="outputs", path=path, **counts
            )
    return None


def _reader(captures: Sequence[RankCapture], found: Difference) -> str:
    """Return the first operator of a call that is given memory as it is and returns NaN of it."""
    for capture in captures:
        for call in capture.calls:
            if (call.module, call.n, capture.rank) == (found.module, found.call, found.rank):
                return _first_reader(call.operators)
    return ""


def _first_reader(operators: tuple[Operator, ...]) -> str:
    for operator in operators:
        makers = [
            operators[origin.operator].name
            for origin in _origins(operator)
            if origin.kind is OriginKind.OPERATOR
            and bare_name(operators[origin.operator].name) in EMPTY_OPERATORS
        ]
        is_nan = any(
            made.ref is not None and made.ref.meta.statistics is not None and made.ref.meta.statistics.nan
            for made in operator.results
        )
        if is_nan:
            return f"{operator.name} of what {makers[0]} made" if makers else operator.name
    return ""


def _origins(operator: Operator) -> list[Origin]:
    values = list(operator.arguments.values())
    nested = [x for value in values if isinstance(value, list) for x in value]
    return [value for value in (*values, *nested) if isinstance(value, Origin)]
