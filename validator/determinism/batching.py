"""D1: a sequence's bits don't depend on its batch, or rounding explains how they do."""

from collections.abc import Sequence

from validator.determinism.explained import Oracle, found_in_one
from validator.determinism.inside import listed, operators_of, reductions_of
from validator.determinism.records import Answer, Difference, Problem
from validator.determinism.reductions import described
from validator.determinism.rows import compare_rows
from validator.determinism.runs import RunSet
from validator.determinism.variants import Variant

__all__ = ["batching"]


def batching(runs: RunSet, oracle: Oracle, *, tokens: int) -> Answer:
    """Say whether the bits of a sequence depend on its batch's size or its place there, and whether they may.

    Args:
        runs: of `variants.batch_variants`.
        oracle: checks runs whose bits differ.
        tokens: s of the target's inputs.

    Raises:
        ValidatorError: a run can't be checked.
    """
    if runs.failures.get("batch"):
        return Answer(skipped=runs.failures["batch"])
    if {"alone", "rolled"} <= runs.failures.keys():
        return Answer(skipped="; ".join(runs.failures[name] for name in ("alone", "rolled")))
    batch = runs.capture("batch").all_ranks()
    size = len(_rows(runs.variants["batch"]))
    problems: list[Problem] = []
    notes: list[str] = []
    compared = 0
    places = None
    figures: dict[str, int | str] = {}
    for name, how in (("alone", f"alone than in a batch of {size}"), ("rolled", "at another position in it")):
        if name in runs.failures:
            figures[f"bits {how}"] = "not applicable"
            notes.append(f"not applicable: a sequence {how}: {runs.failures[name]}")
            continue
        variant = runs.variants[name]
        shared = shared_rows(_rows(runs.variants["batch"]), _rows(variant))
        found = compare_rows(
            batch,
            runs.capture(name).all_ranks(),
            sizes=(size, len(_rows(variant))),
            tokens=tokens,
            shared=shared,
            places=places,
        )
        places = places or found.places
        compared += found.compared
        if found.first is None:
            figures[f"bits {how}"] = "the same"
            continue
        behind = operator_by_rows(runs, found.first, ("batch", name), tokens=tokens)
        figures[f"bits {how}"] = "others, explained by rounding"
        made, said = judged_difference(
            oracle, (runs, "batch"), (runs, name), found.first, behind, f"computes a sequence otherwise {how}"
        )
        if made:
            figures[f"bits {how}"] = "others, beyond rounding"
        problems += made
        notes += said
    blind = None if problems else _blind(runs, oracle, compared)
    return Answer(
        problems=tuple(problems), compared=compared, figures=figures, notes=tuple(notes), blind=blind
    )


def shared_rows(a: Sequence[int], b: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return where each sequence that two batches share stands in both."""
    return tuple((a.index(row), j) for j, row in enumerate(b) if row in a)


def judged_difference(
    oracle: Oracle,
    base: tuple[RunSet, str],
    other: tuple[RunSet, str],
    first: Difference,
    behind: str,
    what: str,
) -> tuple[list[Problem], list[str]]:
    """Say whether rounding explains both of two runs that differ; if it does, that is a note.

    Args:
        oracle: checks them.
        base: one run, and its name.
        other: the other.
        first: the first tensor that differs.
        behind: the reduction behind it, or empty.
        what: what the candidate does, in words, such as `"computes a sequence otherwise alone"`.
    """
    cause = f", behind it {behind}" if behind else ""
    where = f"the bits differ first in {first}{cause}"
    here, there = oracle.findings(*base), oracle.findings(*other)
    apart = found_in_one(here, there)
    # Where bits part first, what goes in is the same: if that is wrong, rounding alone did not do it.
    at_first = [finding for finding in (*there, *here) if finding.module == first.culprit]
    if not apart and not at_first:
        note = f"the candidate {what}, and rounding explains it: {where}"
        if here:
            note += f"; it is wrong in both runs alike, {here[0].summary}: see `validator check`"
        return [], [note]
    worst = (apart or at_first)[0]
    healthy = "in the run that it is compared with this edge is healthy; " if apart else ""
    problem = Problem(
        text=f"the candidate {what}, and rounding does not explain it: {worst.summary}; {healthy}{where}",
        module=worst.module,
        rank=worst.rank,
        cause=behind,
    )
    return [problem], []


def operator_by_rows(runs: RunSet, first: Difference, names: tuple[str, str], *, tokens: int) -> str:
    """Return the operator that makes two batches differ, or those that may; empty if unknown.

    Args:
        runs: where both were run.
        first: the first tensor that differs.
        names: of both variants.
        tokens: s.
    """
    if first.side in ("left", "entered"):
        return first.op
    variants = [runs.variants[name] for name in names]
    one, other = (c.all_ranks() for c in operators_of(runs, first.culprit, *variants))
    rows = [_rows(variant) for variant in variants]
    found = compare_rows(
        one,
        other,
        sizes=(len(rows[0]), len(rows[1])),
        tokens=tokens,
        shared=shared_rows(*rows),
    )
    if found.first is not None and found.first.side == "operators":
        return described(found.first.op)
    return listed(reductions_of(one, first.culprit))


def _rows(variant: Variant) -> tuple[int, ...]:
    assert variant.rows is not None
    return variant.rows


def _blind(runs: RunSet, oracle: Oracle, compared: int) -> str | None:
    if not compared:
        return "no tensor of the candidate has a part for each sequence of the batch"
    if "control-neighbour" not in runs.variants:
        return runs.failures.get("control-neighbour", "no control was run")
    seen = [finding.module for finding in oracle.findings(runs, "control-neighbour")]
    if runs.site() not in seen:
        return f"a sequence mixed with its neighbour was planted at {runs.site()}, and was not seen there"
    return None
