"""What is wrong with a collective, from what all ranks observed, and which rank is guilty."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from validator.capturing.formats_hdf5 import torch_dtype

from .records import Blame, Fault, Kind, Observation

__all__ = ["Group", "Problem", "find_problems"]

Group = tuple[Observation, ...]
"""What all ranks observed in one case, by rank."""

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


def find_problems(groups: Sequence[Group], world_size: int) -> list[Problem]:
    """Return what is wrong, one for each collective, fault and guilty ranks."""
    return _merged([problem for group in groups for problem in _problems(group, world_size)])


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


def _shown(value: float, digits: int) -> str:
    return f"{value:.{digits}g}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
