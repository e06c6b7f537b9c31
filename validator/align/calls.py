"""Which call of the candidate is which call of the reference.

Both sides are trees of calls. They are walked together from the model down, each module's calls
paired in order inside its parent's; modules that only one side has are looked through.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.capturing.records import Call, RankCapture

__all__ = ["Children", "MatchedCall", "MatchedCalls", "children_of", "enclosing", "match_calls"]

Children = dict[int | None, dict[str, list[Call]]]
"""Calls by the id of the call that encloses them (None for outermost ones) and by module, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedCall:
    """A call of the reference, the candidate's on each rank, and the reference's that encloses it."""

    ref: Call
    cand: Mapping[int, Call]
    parent: Call | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedCalls:
    """All pairs in the reference's order, and the modules whose calls don't line up: `(module, why)`."""

    calls: tuple[MatchedCall, ...]
    problems: tuple[tuple[str, str], ...]


def match_calls(*, cand: Sequence[RankCapture], ref: RankCapture, modules: Mapping[str, str]) -> MatchedCalls:
    """Pair the calls of both sides.

    Args:
        cand: every rank's capture. A rank may leave a module out (another pipeline stage).
        ref: the reference's.
        modules: the reference's name of each candidate module that both sides have.

    Returns:
        The pairs. A module that the two sides call a different number of times inside one parent is left out,
        with all below it: its parent has to be judged through it.
    """
    ref_children = children_of(ref.calls, {name: name for name in modules.values()})
    cand_children = {capture.rank: children_of(capture.calls, modules) for capture in cand}
    problems: dict[str, str] = {}
    for _ in _walk(ref_children, cand_children, problems):
        pass
    # A count that differs in a later call condemns the earlier ones as well: a second walk leaves all out.
    calls = list(_walk(ref_children, cand_children, problems))
    calls.sort(key=lambda call: call.ref.start)
    return MatchedCalls(calls=tuple(calls), problems=tuple(problems.items()))


def _walk(
    ref_children: Children, cand_children: Mapping[int, Children], problems: dict[str, str]
) -> Iterator[MatchedCall]:
    skipped = set(problems)
    stack: list[tuple[Call | None, dict[int, int | None]]] = [(None, dict.fromkeys(cand_children))]
    while stack:
        parent, cand_parents = stack.pop()
        ref_groups = ref_children.get(parent.id if parent else None, {})
        cand_groups = {rank: cand_children[rank].get(call, {}) for rank, call in cand_parents.items()}
        names = [*ref_groups, *(name for groups in cand_groups.values() for name in groups)]
        for name in dict.fromkeys(names):
            if name in skipped:
                continue
            ref_calls = ref_groups.get(name, [])
            cand_calls = {rank: groups[name] for rank, groups in cand_groups.items() if name in groups}
            counts = {rank: len(calls) for rank, calls in cand_calls.items()} or dict.fromkeys(cand_groups, 0)
            if wrong := {rank: count for rank, count in counts.items() if count != len(ref_calls)}:
                problems.setdefault(name, _why(parent, wrong, len(ref_calls)))
                continue
            for i, ref_call in enumerate(ref_calls):
                calls = {rank: of_rank[i] for rank, of_rank in cand_calls.items()}
                yield MatchedCall(ref=ref_call, cand=calls, parent=parent)
                stack.append((ref_call, {rank: call.id for rank, call in calls.items()}))


def children_of(calls: Sequence[Call], names: Mapping[str, str]) -> Children:
    """Group the calls of known modules by nearest known caller, then by the reference's name, in order."""
    by_id = {call.id: call for call in calls}
    children: Children = {}
    for call in sorted(calls, key=lambda call: call.start):
        if call.module not in names:
            continue
        caller = next((outer.id for outer in enclosing(call, by_id) if outer.module in names), None)
        children.setdefault(caller, {}).setdefault(names[call.module], []).append(call)
    return children


def enclosing(call: Call, by_id: Mapping[int, Call]) -> Iterator[Call]:
    """Yield the calls that enclose a call, innermost first."""
    while call.parent is not None:
        call = by_id[call.parent]
        yield call


def _why(parent: Call | None, counts: Mapping[int, int], ref_count: int) -> str:
    where = f"in call {parent.n} of {parent.module or 'the model'}" if parent else "outside of other modules"
    ranks = ", ".join(f"{count} on rank {rank}" for rank, count in counts.items())
    return (
        f"number of calls {where}: candidate {ranks}, reference {ref_count}; "
        "its caller is judged as one function through it"
    )
