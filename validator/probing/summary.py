"""Put together what all ranks observed: what is wrong, and which rank is guilty."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from validator.capturing.formats_hdf5 import torch_dtype
from validator.checks.findings import Verdict

from .records import Blame, Fault, Kind, Observation, Order, OrderKind, Status

__all__ = ["ProbeOutcome", "Problem", "Row", "summarise"]


_CHANCE_BITS = 16
"""Wrong bits below which an explanation may hold by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a collective.

    Attributes:
        guilty: the ranks that are to blame, ascending; all that got wrong values where that can't be told.
        seen_by: the ranks that got wrong values, ascending.
        blame: what the first of them saw first.
        dtypes, sizes: with which it happens.
        calls: in how many calls, counted on each rank.
        hazard: torch promises nothing for such a call, so this is a warning and no fault.
    """

    call: str
    case: str
    fault: Fault
    guilty: tuple[int, ...]
    seen_by: tuple[int, ...]
    blame: Blame
    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]
    calls: int
    hazard: bool

    @property
    def collective(self) -> str:
        """The call without its reduction."""
        return self.call.partition(" ")[0]

    @property
    def summary(self) -> str:
        """One sentence."""
        who = _ranks(self.guilty)
        if math.isnan(self.blame.right) and math.isnan(self.blame.got):
            return f"{self.call}: {self.fault}, {who}: {self.blame.detail}"
        where = f"elements {self.blame.first} to {self.blame.last} of {self.blame.size}"
        digits = next((d for d in (6, 9) if _shown(self.blame.got, d) != _shown(self.blame.right, d)), 17)
        values = f"{_shown(self.blame.got, digits)} where {_shown(self.blame.right, digits)} is right"
        detail = f"; {self.blame.detail}" if self.blame.detail else ""
        return f"{self.call}: {self.fault}, {who} ({where}: {values}{detail})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What holds of one collective.

    Attributes:
        right, wrong, refused: dtypes by what came of them.
        deterministic: whether repeats had the same bits; None where that was not looked at.
        orders: how it adds, by dtype and size, with the formats in which it may be adding.
        bandwidths: seconds by message size in bytes, of the slowest rank.
    """

    call: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    refused: dict[str, str]
    deterministic: bool | None
    orders: dict[tuple[str, int], tuple[Order, tuple[str, ...]]]
    bandwidths: dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOutcome:
    """The result of a probe.

    Attributes:
        refused: calls that the backend refuses, with their cases: `(call, case, dtypes, message)`.
        unchecked: calls of which nothing could be checked.
    """

    name: str
    world_size: int
    backend: str
    device: str
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]
    refused: tuple[tuple[str, str, tuple[str, ...], str], ...] = field(default=())
    unchecked: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """`divergent` where a promised call was wrong; `inconclusive` where one was never checked."""
        if any(not problem.hazard for problem in self.problems):
            return Verdict.DIVERGENT
        return Verdict.INCONCLUSIVE if self.unchecked else Verdict.ALIGNED


def summarise(
    observations: Sequence[Sequence[Observation]], *, name: str, backend: str, device: str
) -> ProbeOutcome:
    """Conclude from what every rank observed.

    Args:
        observations: by rank, the same cases in the same order on each.
        name: of the probe.
        backend: what was probed.
        device: torch device type that it ran on.
    """
    world_size = len(observations)
    groups = list(zip(*observations, strict=True))
    problems = [problem for group in groups for problem in _problems(group, world_size)]
    calls = list(dict.fromkeys(group[0].call for group in groups))
    rows = tuple(_row(call, [group for group in groups if group[0].call == call]) for call in calls)
    return ProbeOutcome(
        name=name,
        world_size=world_size,
        backend=backend,
        device=device,
        rows=rows,
        problems=tuple(_merged(problems)),
        refused=tuple(_refused(groups)),
        unchecked=tuple(row.call for row in rows if not row.right and not row.wrong),
    )


Group = tuple[Observation, ...]


def _problems(group: Group, world_size: int) -> Iterator[Problem]:
    blames = {seen.rank: seen.blames for seen in group if seen.blames}
    for fault in dict.fromkeys(blame.fault for found in blames.values() for blame in found):
        of_fault = {rank: [b for b in found if b.fault is fault] for rank, found in blames.items()}
        of_fault = {rank: found for rank, found in of_fault.items() if found}
        yield _problem(group, fault, of_fault, _guilty(group[0], of_fault, world_size))
    if blames or any(len(set(seen.checksums)) > 1 for seen in group):
        varying = [seen.rank for seen in group if len(set(seen.checksums)) > 1]
        if varying:
            blame = _whole(group[varying[0]], Fault.NONDETERMINISTIC, "the same call on the same values")
            yield _problem(group, Fault.NONDETERMINISTIC, {rank: [blame] for rank in varying}, tuple(varying))
        return
    firsts = {seen.rank: seen.checksums[0] for seen in group if seen.replicated and seen.checksums}
    if len(set(firsts.values())) > 1:
        usual, count = Counter(firsts.values()).most_common(1)[0]
        odd = [rank for rank, found in firsts.items() if found != usual or 2 * count <= world_size]
        blame = _whole(group[odd[0]], Fault.DISAGREE, "replicas drift apart from such a result on")
        yield _problem(group, Fault.DISAGREE, {rank: [blame] for rank in odd}, tuple(odd))


def _problem(group: Group, fault: Fault, blames: dict[int, list[Blame]], guilty: tuple[int, ...]) -> Problem:
    first = next(iter(blames.values()))[0]
    return Problem(
        call=group[0].call,
        case=group[0].case,
        fault=fault,
        guilty=guilty,
        seen_by=tuple(sorted(blames)),
        blame=first,
        dtypes=(group[0].dtype,),
        sizes=tuple(dict.fromkeys(seen.size for seen in group)),
        calls=sum(map(len, blames.values())),
        hazard=not group[0].promised,
    )


def _guilty(seen: Observation, blames: dict[int, list[Blame]], world_size: int) -> tuple[int, ...]:
    """Say who is to blame: a source that is wrong for several receivers, else who received."""
    # What a race left in a buffer goes on to others in the next call.
    first = min(blame.turn for found in blames.values() for blame in found)
    if seen.kind is Kind.OVERLAP:
        blames = {rank: found for rank, found in blames.items() if found[0].turn == first}
    receivers = tuple(sorted(blames))
    sources = {blame.source for found in blames.values() for blame in found}
    if len(sources) != 1 or None in sources:
        return receivers
    source = next(rank for rank in sources if rank is not None)
    if len(receivers) > 1:
        return (source,)
    if seen.call.startswith(("all_reduce", "reduce_scatter")):
        return receivers
    # What one rank alone lacks of a message to all, it lost itself; of a message to it, either may have.
    to_all = seen.call in ("all_gather", "broadcast") and world_size > 2
    return receivers if to_all else tuple(sorted({source, *receivers}))


def _merged(problems: Sequence[Problem]) -> list[Problem]:
    """Merge what differs in dtype, size or case alone, and leave out what another case explains better."""
    alike: dict[tuple[str, Fault, tuple[int, ...], bool], list[Problem]] = {}
    for problem in problems:
        key = (problem.call, problem.fault, problem.guilty, problem.hazard)
        alike.setdefault(key, []).append(problem)
    merged = [_one(found) for found in alike.values()]
    return [problem for problem in merged if not any(_explains(other, problem) for other in merged)]


def _one(alike: Sequence[Problem]) -> Problem:
    clearest = max(alike, key=_evidence_bits)
    return replace(
        clearest,
        case=", ".join(dict.fromkeys(problem.case for problem in alike)),
        seen_by=tuple(sorted({rank for problem in alike for rank in problem.seen_by})),
        dtypes=tuple(dict.fromkeys(dtype for problem in alike for dtype in problem.dtypes)),
        sizes=tuple(sorted({size for problem in alike for size in problem.sizes})),
        calls=sum(problem.calls for problem in alike),
    )


def _explains(better: Problem, problem: Problem) -> bool:
    """Say whether a problem is another's, seen where less can be told."""
    if better.hazard != problem.hazard or better.collective != problem.collective:
        return False
    if problem.fault is Fault.CORRUPT and problem.blame.source is None:
        return better.fault is not Fault.CORRUPT or better.blame.source is not None
    if better.call != problem.call:
        return False
    # Of one element, all that follows it is the whole.
    if (problem.fault, better.fault) == (Fault.NOT_WRITTEN, Fault.TRUNCATED):
        return problem.guilty == better.guilty
    return _evidence_bits(problem) < _CHANCE_BITS <= _evidence_bits(better)


def _evidence_bits(problem: Problem) -> int:
    width = 1 if problem.dtypes[0] == "bool" else 8 * torch_dtype(problem.dtypes[0]).itemsize
    return problem.blame.count * width


def _whole(seen: Observation, fault: Fault, detail: str) -> Blame:
    return Blame(
        fault=fault,
        first=0,
        last=max(0, seen.size - 1),
        count=seen.size,
        size=seen.size,
        right=float("nan"),
        got=float("nan"),
        detail=detail,
    )


def _row(call: str, groups: Sequence[Group]) -> Row:
    by_dtype: dict[str, set[Status]] = {}
    messages: dict[str, str] = {}
    for group in groups:
        if group[0].kind is Kind.BANDWIDTH:
            continue
        if not group[0].promised:
            continue
        for seen in group:
            by_dtype.setdefault(seen.dtype, set()).add(seen.status)
            if seen.message:
                messages.setdefault(seen.dtype, seen.message)
    repeated = [seen for group in groups for seen in group if len(seen.checksums) > 1]
    bandwidths: dict[int, float] = {}
    for group in groups:
        for seen in group:
            for size_bytes, seconds in seen.figures.items():
                bandwidths[size_bytes] = max(seconds, bandwidths.get(size_bytes, 0.0))
    return Row(
        call=call,
        right=tuple(d for d, found in by_dtype.items() if Status.OK in found and Status.WRONG not in found),
        wrong=tuple(d for d, found in by_dtype.items() if Status.WRONG in found),
        refused={d: messages[d] for d, found in by_dtype.items() if found == {Status.UNSUPPORTED}},
        deterministic=all(len(set(seen.checksums)) == 1 for seen in repeated) if repeated else None,
        orders={
            (group[0].dtype, group[0].size): _order(group)
            for group in groups
            if group[0].kind is Kind.ORDER and all(seen.order is not None for seen in group)
        },
        bandwidths=bandwidths,
    )


def _order(group: Group) -> tuple[Order, tuple[str, ...]]:
    """Say what order the ranks' own ones make together."""
    orders = [seen.order for seen in group if seen.order is not None]
    formats = tuple(f for f in group[0].formats if all(f in seen.formats for seen in group))
    steps = {order.step for order in orders}
    if len(set(orders)) == 1:
        return orders[0], formats
    if {order.kind for order in orders} <= {OrderKind.FOLD, OrderKind.RING} and len(steps) == 1:
        way = "upwards" if steps == {1} else "downwards"
        return Order(kind=OrderKind.RING, step=steps.pop(), text=f"ring, {way}"), formats
    text = "; ".join(f"rank {seen.rank}: {seen.order.text}" for seen in group if seen.order is not None)
    return Order(kind=OrderKind.UNKNOWN, text=text), formats


def _refused(groups: Sequence[Group]) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    found: dict[tuple[str, str], list[Observation]] = {}
    for group in groups:
        refusals = [seen for seen in group if seen.status is Status.UNSUPPORTED]
        if refusals:
            found.setdefault((refusals[0].call, refusals[0].case), []).append(refusals[0])
    for (call, case), seen in found.items():
        yield call, case, tuple(dict.fromkeys(one.dtype for one in seen)), seen[0].message


def _shown(value: float, digits: int) -> str:
    return f"{value:.{digits}g}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
