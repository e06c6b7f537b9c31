"""What the verdicts on pairs come to: findings, and what is left open."""

from collections import Counter
from collections.abc import Sequence

from validator.align.traces import TraceCall
from validator.capturing.levels import COARSEST, Level
from validator.capturing.reader import Capture
from validator.checks.findings import Arm, Check, Evidence, Finding, Verdict
from validator.comparing.records import Gap, Pair, PairVerdict
from validator.digits import ratio

__all__ = ["open_questions", "pair_finding", "passed_over", "thin_notes", "thin_reasons"]


def pair_finding(pair: Pair, said: PairVerdict, *, caller: TraceCall | None, order: int) -> Finding:
    """Return a pair that its noise can't explain as a finding; what goes into a module is its caller's.

    Args:
        pair: the pair.
        said: its verdict.
        caller: the call that encloses the one whose edge it is, or None.
        order: position in execution order.
    """
    assert said.arm is not None
    module, candidate_module, into, call = pair.module, pair.candidate_module, None, pair.call
    if pair.side == "input" and caller is not None:
        module, candidate_module, into, call = (
            caller.module,
            caller.candidate_module,
            pair.module,
            caller.n,
        )
    evidence = said.evidence or Evidence(
        outside=pair.metrics.mismatched,
        elements=pair.metrics.elements,
        shape=pair.shape,
        worst_index=pair.metrics.worst_index,
    )
    return Finding(
        module=module,
        candidate_module=candidate_module,
        check=Check.PAIR,
        into=into,
        path=pair.path.rpartition(".")[2] if pair.side == "parameter" else pair.path,
        call=call,
        rank=pair.rank,
        verdict=Verdict.DIVERGENT,
        arm=said.arm,
        evidence=evidence,
        order=order,
        summary=_summary(module, pair, into, said.arm, evidence, said.note),
    )


def open_questions(pairs: Sequence[Pair]) -> list[str]:
    """Return why the pairs that are not divergent don't make the comparison aligned."""
    why = []
    for gap in Gap:
        found = [pair for pair in pairs if pair.judged is not None and pair.judged.gap is gap]
        if found and gap.is_open:
            why.append(f"{len(found)} tensors that differ are not judged, such as {_name(found[0])}: {gap}")
    behind = [pair for pair in pairs if pair.judged and pair.judged.verdict is Verdict.INCONCLUSIVE]
    if behind:
        why.append(
            f"{len(behind)} tensors are beyond their noise, from {_name(behind[0])} on, but a choice comes "
            "before them (of experts, say) that near ties decide otherwise in a healthy run"
        )
    if all(pair.judged is None or pair.judged.evidence is None for pair in pairs) and any(
        pair.differs for pair in pairs
    ):
        why.append("no tensor that differs has noise to be judged by")
    return why


def thin_reasons(ref: Capture, cand: Capture) -> list[str]:
    """Return why an absence of findings proves nothing, where little was kept of the tensors."""
    sides = (("reference", ref), ("candidate", cand))
    return [
        f"only statistics of the {side}'s tensors were kept: they show large faults and NaN, and prove "
        "nothing"
        for side, capture in sides
        if capture.manifest.level is Level.STATS
    ]


def thin_notes(*captures: Capture) -> list[str]:
    """Say what share of the tensors was looked at."""
    if all(capture.manifest.level is not Level.SAMPLE for capture in captures):
        return []
    return [
        f"sampled: of large tensors one element in up to {COARSEST} was looked at, and judged by what "
        "rounding carries there through the whole model: a fault that is rarer, or smaller, passes unseen"
    ]


def passed_over(pairs: Sequence[Pair]) -> list[str]:
    """Say what was judged by nothing, and need not be."""
    gaps = Counter(pair.judged.gap for pair in pairs if pair.judged is not None)
    return [
        f"{gaps[gap]} tensors that differ are judged by nothing: {gap}"
        for gap in Gap
        if gaps[gap] and not gap.is_open
    ]


def _summary(module: str, pair: Pair, into: str | None, arm: Arm, evidence: Evidence, note: str) -> str:
    name, what = module or "the model", pair.path.rpartition(".")[2]
    if pair.side == "parameter":
        subject = f"{name}: parameter {what}"
    elif into is not None:
        subject = f"{name}: what goes into {into}"
    else:
        subject = f"{name}: the {' '.join(filter(None, (pair.side, what)))}"
    if note and arm is Arm.CLASS:
        return f"{subject}: {note}, which the reference has not, where no rounding overflows"
    if note:
        times = ratio(evidence.max_over_band or 0.0)
        return f"{subject}: {note}, {times} times as far as rounding carries it"
    share = f"{evidence.outside} of {evidence.elements} elements"
    if arm is Arm.EXACT:
        return f"{subject} differs in {share}, and no rounding reaches it"
    if arm is Arm.CLASS:
        return f"{subject} has NaN or infinity on one side alone, where no rounding overflows"
    times = ratio(evidence.max_over_band or 0.0)
    return (
        f"{subject} is further from the reference than rounding carries it, in {share} "
        f"(at worst {times} times as far)"
    )


def _name(pair: Pair) -> str:
    return " ".join(filter(None, (pair.module or "(the model itself)", pair.side, pair.path)))
