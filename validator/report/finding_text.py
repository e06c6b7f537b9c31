"""Findings as rows of text: the first with its evidence, further ones on a line each."""

from collections.abc import Iterator, Sequence

from validator import digits
from validator.capturing.outline import glob_of
from validator.capturing.selection import Selection
from validator.checks.findings import Arm, Check, Evidence, Finding, Outcome, Verdict
from validator.report import facts, phrases
from validator.report.screen import Row, Section

__all__ = [
    "cells",
    "check_of",
    "finding_section",
    "first_section",
    "further_section",
    "missing_recipe",
    "place_of",
]

_FURTHER = 8
# These checks hold the candidate to values of the reference or of another rank: there is no oracle.
_WITHOUT_ORACLE = {
    Check.PARAMETER: "rounded once to {dtype}",
    Check.INPUT: "",
    Check.EXACT: "",
    Check.REPLICA: "the replica of the lowest rank",
    Check.PAIR: "",
}

# They compare values that nothing was computed for.
_NOTHING_TO_RUN = (Check.INPUT, Check.PAIR, Check.DISTRIBUTION, Check.MEMORY)


def first_section(outcome: Outcome, finding: Finding) -> Section:
    """Return everything that is known of the first finding, as STYLE's example shows it."""
    return finding_section(outcome, finding, place="first ")


def finding_section(outcome: Outcome, finding: Finding, place: str = "") -> Section:
    """Return everything that is known of one finding.

    Args:
        outcome: that it is of.
        finding: the finding.
        place: what comes before the word for its kind: `"first "` or nothing.
    """
    kind = "divergence" if finding.verdict is Verdict.DIVERGENT else "undeclared precision"
    before = sum(j.order < finding.order and j.verdict is Verdict.ALIGNED for j in facts.edges(outcome))
    edges = f"{phrases.count(before, 'edge')} before it {'is' if before == 1 else 'are'} aligned"
    how = check_of(finding) + (f"; {edges}" if before else "")
    return Section(
        title=f"{phrases.edge_name(finding)}: {place}{kind} ({how})",
        rows=tuple(_rows(outcome, finding)),
    )


def further_section(findings: Sequence[Finding]) -> Section:
    """Return one aligned line for each of the first findings, and how many more there are."""
    shown = [cells(finding) for finding in findings[:_FURTHER]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
    if len(findings) > _FURTHER:
        lines.append(f"... and {len(findings) - _FURTHER} more")
    return Section(
        title=phrases.count(len(findings), "further finding"),
        rows=tuple(Row(text=line) for line in lines),
    )


def cells(finding: Finding) -> tuple[str, ...]:
    """Return the edge, the check, the rank, how far off it is, and what it looks like."""
    return (
        phrases.edge_name(finding),
        finding.check,
        "" if finding.rank is None else f"rank {finding.rank}",
        _figure(finding),
        phrases.signature(finding.signature) if finding.signature else "",
    )


def check_of(finding: Finding) -> str:
    """Return which check found it, and at which call where that is not the first."""
    return f"{finding.check} check" + (f", call {finding.call}" if finding.call else "")


def place_of(finding: Finding) -> str:
    """Return where it is: the edge, the rank, and the recipe that would explain it."""
    rank = "" if finding.rank is None else f", rank {finding.rank}"
    recipe = missing_recipe(finding)
    needs = f"; recipe {recipe} would explain it" if recipe else ""
    return f"{phrases.edge_name(finding)}{rank}{needs}"


def missing_recipe(finding: Finding) -> str | None:
    """Return the recipe that would explain the finding if it were declared, or None."""
    return finding.recipe if finding.verdict is Verdict.UNDECLARED_PRECISION else None


def next_command(outcome: Outcome, finding: Finding) -> str | None:
    """Return the command that leads on from a finding, or None where there is none.

    It looks at the finding's module alone, and keeps both runs; where some modules alone were looked at, or
    both runs were kept, it writes a reproducer.
    """
    command = outcome.run.get("command")
    if not command:
        return None
    chosen = facts.side(outcome, "candidate").get("modules", {})
    include = tuple(chosen.get("include", ()))
    is_near = bool(include) or "kept" in outcome.run
    if is_near and (finding.check in _NOTHING_TO_RUN or "reproducer" in outcome.run):
        return None
    if finding.module and finding.candidate_module:
        include = (f"{glob_of(finding.candidate_module)}*",)
    options = Selection(include=include, exclude=tuple(chosen.get("exclude", ()))).options
    return " ".join(filter(None, (command, options, "--repro repro" if is_near else "--keep run")))


def _rows(outcome: Outcome, finding: Finding) -> Iterator[Row]:
    evidence, where = finding.evidence, phrases.places(finding.where)
    yield Row(label="what", text=finding.summary.removeprefix(f"{finding.module}: "))
    for label, side in (("reference", _reference), ("candidate", _candidate)):
        if text := side(outcome, finding):
            yield Row(label=label, text=text)
    if evidence.outside and evidence.elements and finding.arm is not Arm.GAIN:
        share = digits.percent(evidence.outside, evidence.elements)
        text = f"{evidence.outside} of {evidence.elements} elements ({share})"
        label = "differ" if finding.arm is Arm.EXACT else "outside"
        yield Row(label=label, text=f"{text}, all in {where}" if where else text)
    elif where:
        yield Row(label="where", text=where)
    if finding.arm is Arm.GAIN and evidence.gain is not None:
        z = "" if evidence.z is None else f", {digits.number(abs(evidence.z))} standard errors from 0"
        yield Row(label="gain", text=f"{digits.scientific(evidence.gain)}{z}: too systematic for rounding")
    if evidence.worst_index is not None and finding.arm is not Arm.GAIN:
        yield Row(label="worst", text=_worst(finding))
    if finding.signature is not None:
        yield Row(label="looks like", text=phrases.signature(finding.signature))
    command = next_command(outcome, finding)
    if command is not None:
        yield Row(label="next", text=command, command=True)


def _reference(outcome: Outcome, finding: Finding) -> str:
    evidence, dtype = finding.evidence, _dtype(outcome, finding)
    how = _WITHOUT_ORACLE.get(finding.check, "float64 oracle, weights rounded to {dtype}")
    parts = (
        facts.side(outcome, "reference").get("source"),
        how.format(dtype=dtype or "the candidate's format"),
        phrases.shape(evidence.shape, evidence.dims) if evidence.shape else "",
    )
    return "  ".join(filter(None, parts))


def _candidate(outcome: Outcome, finding: Finding) -> str:
    parts = (
        _dtype(outcome, finding),
        _sharding(outcome),
        "" if finding.rank is None else f"seen on rank {finding.rank}",
        f"named {finding.candidate_module}" if finding.candidate_module != finding.module else "",
    )
    source = facts.side(outcome, "candidate").get("source")
    return "  ".join(filter(None, (source, ", ".join(filter(None, parts)))))


def _sharding(outcome: Outcome) -> str:
    ranks = facts.world_size(outcome)
    axes = [f"{axis}={size}" for axis, size in facts.mesh_axes(outcome).items() if size > 1]
    return "" if ranks == 1 else " ".join((f"{ranks} ranks", *([f"({', '.join(axes)})"] if axes else [])))


def _dtype(outcome: Outcome, finding: Finding) -> str:
    """Return the format of the finding's own edge; of most edges if that one has no judgement."""
    key = facts.edge_key(finding)
    own = (judgement.dtype for judgement in outcome.judgements if facts.edge_key(judgement) == key)
    return next(own, "") or facts.storage_format(outcome)


def _worst(finding: Finding) -> str:
    evidence = finding.evidence
    trusted = "reference" if finding.check in _WITHOUT_ORACLE else "oracle"
    # Of another class than the oracle's, an element has no distance from it.
    has_distance = finding.arm is not Arm.CLASS
    error_ulp = _worst_ulp(evidence) if has_distance else None
    values = [
        f"{trusted} {evidence.reference:.8g}" if evidence.reference is not None else "",
        f"candidate {evidence.candidate:.8g}" if evidence.candidate is not None else "",
        f"{digits.number(error_ulp)} ulp" if error_ulp is not None else "",
    ]
    band = evidence.worst_allowed_ulp if has_distance and finding.check not in _WITHOUT_ORACLE else None
    allowed = "" if band is None else f"; the band allows {digits.number(band)}"
    return f"{list(evidence.worst_index or ())}: {', '.join(filter(None, values))}{allowed}"


def _worst_ulp(evidence: Evidence) -> float | None:
    """Return the error at the worst element, in ulp: the largest one may be at an element near 0."""
    if evidence.max_over_band is None or not evidence.worst_allowed_ulp:
        return evidence.ulp_error_max
    return evidence.max_over_band * evidence.worst_allowed_ulp


def _figure(finding: Finding) -> str:
    evidence, recipe = finding.evidence, missing_recipe(finding)
    if recipe:
        return f"needs recipe {recipe}"
    if finding.arm is Arm.GAIN and evidence.gain is not None:
        return f"gain {digits.scientific(evidence.gain)}"
    if finding.arm is Arm.MAX and evidence.max_over_band is not None:
        return f"{digits.ratio(evidence.max_over_band)}x band"
    return {Arm.EXACT: "bits differ", Arm.CLASS: "other class"}.get(finding.arm, finding.arm.lower())
