"""Put together what all ranks observed of each collective, and the verdict."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from validator.checks.findings import Verdict

from .problems import Group, Problem, find_problems
from .records import Kind, Observation, Order, OrderKind, Status

__all__ = ["ProbeOutcome", "Row", "summarise"]


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
    calls = list(dict.fromkeys(group[0].call for group in groups))
    rows = tuple(_row(call, [group for group in groups if group[0].call == call]) for call in calls)
    return ProbeOutcome(
        name=name,
        world_size=world_size,
        backend=backend,
        device=device,
        rows=rows,
        problems=tuple(find_problems(groups, world_size)),
        refused=tuple(_refused(groups)),
        unchecked=tuple(row.call for row in rows if not row.right and not row.wrong),
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
