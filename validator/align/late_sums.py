"""Sums over ranks that a module leaves to its caller, moved back into the module.

A row-parallel projection may return its term and let the layer around it complete the sum. What the
reference's module returns is then what left that sum, and no rank's own output. Nothing is guessed: the
output on every rank entered the sum bit by bit. Where some ranks give the sum something else than they
returned, the outputs are its terms all the same, and what was done to them is the caller's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from validator.align.calls import enclosing
from validator.capturing.levels import NOTHING
from validator.capturing.records import Call, Collective, Mesh, Placement, RankCapture, TensorRef
from validator.sharding.inference import CLEARLY, arrangements, role_of
from validator.sharding.unshard import shard

__all__ = ["mark_terms", "move_late_sums"]

_Site = tuple[str, int, str]
"""An output: module, how many calls of it came before, path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LateSum:
    """A sum that one rank's output entered after its call had ended."""

    call: Call
    given: TensorRef
    sum_: Collective


def move_late_sums(cand: Sequence[RankCapture]) -> tuple[RankCapture, ...]:
    """Let modules return what left the sum over ranks that their outputs entered.

    Args:
        cand: every rank's capture.

    Returns:
        The captures. An output that is alike on all ranks is complete and stays: to sum it again is a fault.
        So does one that no rank's caller sums as it is.
    """
    captures = tuple(cand)
    for _ in range(_MOST):
        sites = _sites(captures)
        complete = [of_rank for of_rank, is_whole in sites if is_whole]
        if not complete:
            return tuple(_marked(capture, [of_rank for of_rank, _ in sites]) for capture in captures)
        captures = tuple(
            _moved(c, [of_rank[c.rank] for of_rank in complete if c.rank in of_rank]) for c in captures
        )
    return captures


_MOST = 3
"""Sums one after the other: over the experts' ranks, over those that share an expert, and one to spare."""


def mark_terms(
    cand: Sequence[RankCapture], ref: RankCapture, modules: Mapping[str, str]
) -> tuple[RankCapture, ...]:
    """Let outputs be terms of a sum where the reference's own values say so.

    Where a caller adds up more than one module's terms before it sums over the ranks (routed and shared
    experts), no output enters the sum as it is. What differs on the ranks, lies before a sum of as many
    elements in a caller, and adds up to the reference's output is a term; so is what stands there in another
    layer.

    Args:
        cand: every rank's capture.
        ref: the reference's, on the same inputs.
        modules: the reference's name of each candidate module that both sides have.
    """
    theirs: dict[tuple[str | None, int], Call] = {(call.module, call.n): call for call in ref.calls}
    found: dict[_Site, dict[int, _LateSum]] = {}
    shown: dict[str, bool] = {}
    for site, of_rank in _candidates(cand).items():
        module, n, path = site
        call = theirs.get((modules.get(module), n))
        outputs = {} if call is None else {p: v for p, v in call.outputs.items() if isinstance(v, TensorRef)}
        known = outputs.get(path, next(iter(outputs.values())) if len(outputs) == 1 else None)
        if known is None:
            continue
        found[site] = of_rank
        role = role_of(f"{module} {path}")
        shown[role] = shown.get(role, False) or _add_up(of_rank, known)
    sites = [of_rank for (module, _, path), of_rank in found.items() if shown[role_of(f"{module} {path}")]]
    return tuple(_marked(capture, sites) for capture in cand)


def _candidates(cand: Sequence[RankCapture]) -> dict[_Site, dict[int, _LateSum]]:
    """Return outputs that differ on the ranks of one later sum of as many elements in a caller.

    The ranks that have the output are a pipeline's stage, and may be several groups that sum apart.
    """
    by_site: dict[_Site, dict[int, _LateSum]] = {}
    counts: Counter[_Site] = Counter()
    for capture in cand:
        by_id = {call.id: call for call in capture.calls}
        sums = sorted(filter(_is_sum, capture.collectives), key=lambda c: c.start)
        for call in capture.calls:
            around = {above.id for above in enclosing(call, by_id)}
            later = [c for c in sums if call.end is not None and c.start > call.end and c.call in around]
            for path, value in call.outputs.items():
                if not isinstance(value, TensorRef) or "float" not in value.meta.dtype:
                    continue
                counts[call.module, call.n, path] += 1
                fitting = [c for c in later if prod(c.entered[0].meta.shape) == prod(value.meta.shape)]
                if fitting and value.meta.placements is None:
                    late = _LateSum(call=call, given=value, sum_=fitting[0])
                    by_site.setdefault((call.module, call.n, path), {})[capture.rank] = late
    return {
        site: of_rank
        for site, of_rank in by_site.items()
        if len(of_rank) == counts[site]
        and all(_differ(group) for group in _groups(of_rank))
        and sum(map(len, _groups(of_rank))) == len(of_rank)
    }


def _groups(of_rank: Mapping[int, _LateSum]) -> list[dict[int, _LateSum]]:
    """Return the ranks of each sum, where all of them have the output, by their lowest."""
    sums = sorted({tuple(sorted(late.sum_.ranks)) for late in of_rank.values()})
    return [
        {rank: of_rank[rank] for rank in ranks} for ranks in sums if all(rank in of_rank for rank in ranks)
    ]


def _differ(group: Mapping[int, _LateSum]) -> bool:
    metas = [late.given.meta for late in group.values()]
    return len({meta.checksum for meta in metas}) > 1 and len({meta.shape for meta in metas}) == 1


def _add_up(of_rank: Mapping[int, _LateSum], known: TensorRef) -> bool:
    """Tell whether each group's tensors add up to the reference's or a part of it, and none is that."""
    groups = {min(group): [late.given for late in group.values()] for group in _groups(of_rank)}
    if NOTHING in {ref.meta.one_in for ref in (known, *(x for given in groups.values() for x in given))}:
        return False
    shapes = {rank: given[0].meta.shape for rank, given in groups.items()}
    whole = known.read().double()
    return any(
        all(_adds_up(given, shard(way.plan, whole, rank)) for rank, given in groups.items())
        for way in arrangements(shapes, known.meta.shape)
    )


def _adds_up(given: Sequence[TensorRef], whole: torch.Tensor) -> bool:
    parts = [tensor.read().double() for tensor in given]
    # What a sample does not hold is NaN.
    alone = min(float((part - whole).square().nansum()) for part in parts)
    together = float((torch.stack(parts).sum(0) - whole).square().nansum())
    return together * CLEARLY < alone


def _sites(captures: Sequence[RankCapture]) -> list[tuple[dict[int, _LateSum], bool]]:
    """Return the late sums of one output each by rank, and whether all ranks gave it as it is."""
    ranks = {capture.rank for capture in captures}
    by_site: dict[_Site, dict[int, _LateSum]] = {}
    holders: dict[_Site, dict[int, tuple[Call, TensorRef]]] = {}
    for capture in captures:
        entered = _entered(capture)
        by_id = {call.id: call for call in capture.calls}
        for call in sorted(capture.calls, key=lambda call: call.start):
            for path, value in call.outputs.items():
                if not isinstance(value, TensorRef) or call.end is None:
                    continue
                site = (call.module, call.n, path)
                holders.setdefault(site, {})[capture.rank] = (call, value)
                around = {above.id for above in enclosing(call, by_id)}
                for sum_ in entered.get(value.meta.checksum, ()):
                    if sum_.start > call.end and sum_.call in around and _fits(value, sum_):
                        late = _LateSum(call=call, given=value, sum_=sum_)
                        by_site.setdefault(site, {})[capture.rank] = late
                        break
    found = []
    for site, of_rank in by_site.items():
        given = {rank: value.meta.checksum for rank, (_, value) in holders[site].items()}
        # What a rank gave whose capture is missing is not known to differ.
        groups = {frozenset(ranks.intersection(late.sum_.ranks)) for late in of_rank.values()}
        if not any(len({given.get(rank) for rank in group}) > 1 for group in groups):
            continue
        is_whole = len(of_rank) == len(holders[site])
        if not is_whole:
            of_rank = _completed(of_rank, holders[site], captures)
        if len(of_rank) == len(holders[site]):
            found.append((of_rank, is_whole))
    return found


def _completed(
    of_rank: Mapping[int, _LateSum],
    holders: Mapping[int, tuple[Call, TensorRef]],
    captures: Sequence[RankCapture],
) -> dict[int, _LateSum]:
    """Add the ranks that gave something else to the same sum."""
    by_rank = {capture.rank: capture for capture in captures}
    completed = dict(of_rank)
    for source, late in of_rank.items():
        owner, place = _place(late.sum_, by_rank[source])
        for rank, (call, value) in holders.items():
            if rank in completed or rank not in late.sum_.ranks:
                continue
            sums = _sums_in(by_rank[rank], owner)
            if place < len(sums) and sums[place].start > (call.end or 0) and _fits(value, sums[place]):
                completed[rank] = _LateSum(call=call, given=value, sum_=sums[place])
    return completed


def _place(sum_: Collective, capture: RankCapture) -> tuple[tuple[str, int], int]:
    """Return the call that a sum is in, and which of its sums it is."""
    call = next(call for call in capture.calls if call.id == sum_.call)
    owner = (call.module, call.n)
    return owner, [other.start for other in _sums_in(capture, owner)].index(sum_.start)


def _sums_in(capture: RankCapture, owner: tuple[str, int]) -> list[Collective]:
    ids = {call.id for call in capture.calls if (call.module, call.n) == owner}
    sums = [c for c in capture.collectives if c.call in ids and _is_sum(c)]
    return sorted(sums, key=lambda c: c.start)


def _is_sum(collective: Collective) -> bool:
    is_plain = collective.op in ("all_reduce", "reduce_scatter") and collective.reduce == "sum"
    return is_plain and len(collective.entered) == len(collective.left) == 1


def _marked(capture: RankCapture, sites: Sequence[Mapping[int, _LateSum]]) -> RankCapture:
    """Let outputs be the terms of a sum that they are."""
    marked: dict[int, dict[str, TensorRef]] = {}
    for of_rank in sites:
        late = of_rank.get(capture.rank)
        if late is None:
            continue
        mesh = Mesh(axes=("sum",), shape=(len(late.sum_.ranks),), ranks=late.sum_.ranks)
        term = (Placement(kind="partial", reduce="sum"),)
        meta = late.given.meta
        meta = replace(meta, placements=term, mesh=mesh, global_shape=meta.shape)
        for path, value in late.call.outputs.items():
            if value is late.given:
                marked.setdefault(late.call.id, {})[path] = replace(late.given, meta=meta)
    calls = tuple(
        replace(call, outputs={**call.outputs, **marked[call.id]}) if call.id in marked else call
        for call in capture.calls
    )
    return replace(capture, calls=calls)


def _entered(capture: RankCapture) -> dict[str, list[Collective]]:
    """Return a rank's sums by the checksum of what entered, in order."""
    entered: dict[str, list[Collective]] = {}
    for sum_ in sorted(filter(_is_sum, capture.collectives), key=lambda c: c.start):
        entered.setdefault(sum_.entered[0].meta.checksum, []).append(sum_)
    return entered


def _fits(value: TensorRef, sum_: Collective) -> bool:
    entered, left = sum_.entered[0].meta, sum_.left[0].meta
    if value.meta.dtype != entered.dtype or value.meta.placements is not None:
        return False
    # Of a scattered sum the rank keeps a part, whose shape only an entered tensor of the same shape tells.
    return left.shape == value.meta.shape if sum_.op == "all_reduce" else entered.shape == value.meta.shape


def _moved(capture: RankCapture, late_sums: Sequence[_LateSum]) -> RankCapture:
    owners = {late.sum_.start: late.call.id for late in late_sums}

    def complete(value: Any, event: int | None) -> Any:
        if isinstance(value, TensorRef) and event is not None:
            for late in late_sums:
                is_between = late.call.end is not None and late.call.end <= event < late.sum_.start
                if is_between and value.meta.checksum == late.given.meta.checksum:
                    return late.sum_.left[0]
        return value

    def of(values: Mapping[str, Any], event: int | None) -> dict[str, Any]:
        return {path: complete(value, event) for path, value in values.items()}

    calls = tuple(
        replace(call, inputs=of(call.inputs, call.start), outputs=of(call.outputs, call.end))
        for call in capture.calls
    )
    collectives = tuple(replace(c, call=owners.get(c.start, c.call)) for c in capture.collectives)
    return replace(capture, calls=calls, collectives=collectives)
