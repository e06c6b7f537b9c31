"""The replica check: tensors that every rank should hold alike, bit by bit.

Where replicas part, everything behind them does until a collective joins them again. Only the
edge where they part is a finding: one whose own inputs agreed.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from validator.align.traces import Edge, Trace, TraceCall, View
from validator.capturing.levels import NOTHING
from validator.checks.findings import Arm, Check, Evidence, Finding, Judgement, Verdict
from validator.sharding.plan import Box

__all__ = ["check_replicas"]


SIGN_Z = 6.0
"""How clearly one copy must be the further one from the control to be named: as `GAIN_Z` in `judge`."""

Errors = Mapping[tuple[str, int, str], Tensor]
"""`[*]` distance from the control, by module, call and path of an output."""


def check_replicas(
    trace: Trace, found: Sequence[Finding], errors: Sequence[Errors], place: Callable[[TraceCall, str], int]
) -> tuple[list[Judgement], list[Finding]]:
    """Find the edges where replicas part.

    Args:
        trace: the candidate's run.
        found: findings of other checks: an edge that one of them names needs no second finding.
        errors: how far each view's copies are from the control, in the order of the trace's views.
        place: gives the place in execution order of the copies of what a call returns at a path.

    Returns:
        A judgement for each output that ranks hold copies of, unless they part there because they had parted
        before; and findings.
    """
    if trace.world_size == 1:
        return [], []
    named = {(f.module, f.call) for f in found} | {(f.into, f.call) for f in found if f.into is not None}
    tainted_parameters = {name.rpartition(".")[0] for name, e in trace.parameters.items() if e.disagreeing}
    judgements, findings = [], []
    for call in trace.calls.values():
        children = [c for c in trace.calls.values() if c.parent == (call.module, call.n)]
        is_given_alike = not any(edge.disagreeing for edge in call.inputs.values())
        is_inside_alike = not any(edge.disagreeing for c in children for edge in c.outputs.values())
        for edge in call.outputs.values():
            if not edge.is_replicated:
                continue
            if not edge.disagreeing:
                judgements.append(_judgement(call, edge, None, place))
                continue
            parts_here = is_given_alike and is_inside_alike and call.module not in tainted_parameters
            if not parts_here:
                continue
            judgement = _judgement(call, edge, edge.disagreeing, place)
            judgements.append(judgement)
            if (call.module, call.n) not in named:
                findings.append(_finding(judgement, edge, dict(zip(trace.views, errors, strict=False))))
    return judgements, findings


def _judgement(
    call: TraceCall, edge: Edge, ranks: tuple[int, ...] | None, place: Callable[[TraceCall, str], int]
) -> Judgement:
    return Judgement(
        module=call.module,
        candidate_module=call.candidate_module,
        check=Check.REPLICA,
        path=edge.path,
        call=call.n,
        verdict=Verdict.DIVERGENT if ranks else Verdict.ALIGNED,
        arm=Arm.EXACT if ranks else None,
        order=place(call, edge.path),
        dtype=edge.dtype,
        evidence=Evidence(shape=edge.shape),
    )


def _finding(judgement: Judgement, edge: Edge, errors: Mapping[View, Errors]) -> Finding:
    differing = edge.disagreeing if edge.odd_rank is None else (edge.odd_rank,)
    base = min(_holders(edge, differing[0]) - set(differing))
    if edge.one_in == NOTHING:
        return _unread(judgement, edge, differing, base)
    first = edge.read(View(ranks=(base,))).data
    other = edge.read(View(ranks=differing[:1]))
    differs = (first != other.data) & ~(first.isnan() & other.data.isnan())
    count = int(differs.sum())
    worst = tuple(differs.nonzero()[0].tolist()) if count else None
    ranks = ", ".join(map(str, differing))
    rank = edge.odd_rank
    if rank is None:
        rank = _further_rank(
            (judgement.module, judgement.call, edge.path), (base, differing[0]), differs, errors
        )
    evidence = Evidence(
        outside=count,
        elements=differs.numel(),
        shape=edge.shape,
        dims=other.dims,
        worst_index=worst,
        reference=float(first[worst]) if worst else None,
        candidate=float(other.data[worst]) if worst else None,
    )
    return judgement.found(
        rank=rank,
        evidence=evidence,
        summary=(
            f"{judgement.module or 'the model'}: the output should be the same on every rank, but rank "
            f"{ranks} differs from rank {base} in {count} of {torch.Size(edge.shape).numel()} elements, "
            "although what went in was the same"
            + (
                ""
                if rank is None or edge.odd_rank is not None
                else f"; rank {rank} is further from the reference"
            )
        ),
    )


def _unread(judgement: Judgement, edge: Edge, differing: Sequence[int], base: int) -> Finding:
    """Return the finding of copies whose values are not stored."""
    return judgement.found(
        rank=edge.odd_rank,
        summary=(
            f"{judgement.module or 'the model'}: the output should be the same on every rank, but by their "
            f"checksums rank {', '.join(map(str, differing))} differs from rank {base}, although what went "
            "in was the same"
        ),
    )


def _further_rank(
    key: tuple[str, int, str], ranks: tuple[int, int], differs: Tensor, errors: Mapping[View, Errors]
) -> int | None:
    """Return which of two ranks is clearly further from the control where they differ, or None.

    Copies that differ by rounding alone are each the further one half the time: a sign test.
    """
    distances = []
    for rank in ranks:
        mine = next((of_view for view, of_view in errors.items() if rank in view.ranks), None)
        distances.append(None if mine is None else mine.get(key))
    first, second = distances
    if first is None or second is None:
        return None
    balance = int((second > first)[differs].sum()) - int((second < first)[differs].sum())
    if balance**2 <= SIGN_Z**2 * max(int((second != first)[differs].sum()), 1):
        return None
    return ranks[1] if balance > 0 else ranks[0]


def _holders(edge: Edge, rank: int) -> set[int]:
    """Return the ranks that hold what this rank holds."""
    boxes: dict[int, set[Box]] = {}
    for part in edge.parts:
        boxes.setdefault(part.rank, set()).add(part.box)
    return {other for other, held in boxes.items() if held == boxes[rank]}
